"""Outline a file by its definitions, each parsed once in all of its versions.

Most definitions are the same from one release to the next. A file is cut before the definitions of
its modules and classes, and what stands between two cuts is parsed by itself. That gives what the
whole file gives: a piece that parses leaves no string, bracket or block open. Where a piece does
not, or what it is part of could be told otherwise, there is no such outline.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sgl_npu_patch.engine.text.block import NEWLINE, Block, walk

_SHELL, _SCOPE = "class _:\n", "_."
_INDENT = 4
_TOP = re.compile(r"^(?=@|def |async def |class )", re.MULTILINE)
_INNER = re.compile(r"^(?=    (?:@|def |async def |class ))", re.MULTILINE)
_CLASS = re.compile(r"(?:@.*\n)*class ")


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold what one piece defines, with offsets and lines counted from its start.

    Attributes:
        inner: how many of the blocks stand in the class that the piece is part of.
        inner_end: where that part of the class ends, or the first statement of the module.
        indent: where the first statement in that class stands.
        closed: statements of the module follow.
    """

    blocks: tuple[Block, ...]
    lines: int
    inner: int
    inner_end: int
    indent: int
    closed: bool


Pieces = dict[tuple[str, bool], Piece | None]


def outline_pieces(text: str, known: Pieces) -> list[Block] | None:
    """Outline a text, None if it cannot be told from its pieces.

    Args:
        known: the pieces of other texts; those of this one are added.
    """
    found: list[Block] = []
    start, line = 0, 0
    for top in _cut(text, _TOP):
        parts = [top]
        if _CLASS.match(top):
            # Without a method the head of a class may be no statement.
            head, *methods = _cut(top, _INNER)
            parts = [head + "".join(methods[:1]), *methods[1:]]
        holder = len(found)
        for number, part in enumerate(parts):
            key = (part, number > 0)
            if key not in known:
                known[key] = _parse(*key)
            piece = known[key]
            if piece is None:
                return None
            if number < len(parts) - 1 and (piece.closed or piece.indent != _INDENT):
                return None
            scope = f"{found[holder].name}." if number else ""
            for count, block in enumerate(piece.blocks):
                name = f"{scope}{block.qualname}" if count < piece.inner else block.qualname
                ends = block.start + start, block.end + start
                found.append(
                    Block(block.kind, block.name, name, *ends, block.line + line, block.guards)
                )
            if len(parts) > 1:
                found[holder] = replace(found[holder], end=start + piece.inner_end)
            start += len(part)
            line += piece.lines
    return found


def _cut(text: str, before: re.Pattern[str]) -> Iterator[str]:
    """Cut a text before definitions; decorators stay with what they decorate."""
    start, decorated = 0, False
    for match in before.finditer(text):
        if not decorated and match.start():
            yield text[start : match.start()]
            start = match.start()
        decorated = text[match.start() : match.start() + _INDENT + 1].lstrip().startswith("@")
    yield text[start:]


def _parse(text: str, shelled: bool) -> Piece | None:  # half of a key
    try:
        body = ast.parse((_SHELL if shelled else "") + text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = [match.end() for match in NEWLINE.finditer(text)]
    ends = [0, *lines, len(text)]
    inner: list[Block] = []
    first, others = body[:1], body[1:]
    if shelled:
        # The shell is a line that the text has not.
        ends = [0, *ends]
        assert isinstance(first[0], ast.ClassDef)
        inner = [
            replace(block, line=block.line - 1, qualname=block.qualname.removeprefix(_SCOPE))
            for block in walk(first[0].body, ends, _SCOPE, ())
        ]
        rest = [replace(block, line=block.line - 1) for block in walk(others, ends, "", ())]
    else:
        rest = [*walk(body, ends, "", ())]
    holder = first[0] if first else None
    return Piece(
        blocks=(*inner, *rest),
        lines=len(lines),
        inner=len(inner),
        inner_end=ends[holder.end_lineno or 0] if holder else 0,
        indent=holder.body[0].col_offset if isinstance(holder, ast.ClassDef) else 0,
        closed=bool(others),
    )
