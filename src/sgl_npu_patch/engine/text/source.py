"""Read one Python file as text and say where its definitions stand.

Offsets count characters of the decoded text, which keeps every newline, byte order mark and tab,
so that splicing and encoding again gives back every byte that was not replaced.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from tokenize import detect_encoding
from typing import TYPE_CHECKING, Literal

from sgl_npu_patch.engine.errors import AnchorError, Refused, Unparsable

if TYPE_CHECKING:
    from sgl_npu_patch.engine.text.pieces import Pieces

Kind = Literal["function", "class", "assignment", "import", "statement"]

NEWLINE = re.compile(r"\r\n|\r|\n")
_BARE_CR = re.compile(rb"\r(?!\n)")
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Block:
    """Bound one definition: whole lines, decorators included.

    ``line`` is that of the ``def``, ``class`` or first target in the tree as it was read.
    ``guards`` names the compound statements between it and the definition that holds it.
    """

    kind: Kind
    name: str
    qualname: str
    start: int
    end: int
    line: int
    guards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """Say on which line of a text a name is called, defined or used otherwise."""

    line: int
    kind: Literal["call", "definition", "other"]


@dataclass(frozen=True, slots=True)
class Source:
    """Hold one decoded file and its outline; editing gives a new one."""

    path: PurePosixPath
    text: str
    encoding: str
    blocks: tuple[Block, ...]

    @property
    def newline(self) -> str:
        """Give the file's first line ending, LF if it has none."""
        match = NEWLINE.search(self.text)
        return match.group() if match else "\n"

    def encode(self) -> bytes:
        """Give the file's bytes.

        Raises:
            Refused: an inserted character has no place in the file's encoding.
        """
        try:
            return self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise Refused(f"{self.path}: cannot be written as {self.encoding}: {error}") from error

    def named(self, name: str, kind: Kind) -> tuple[Block, ...]:
        """List the definitions of a plain name, in file order."""
        return tuple(b for b in self.blocks if b.kind == kind and b.name == name)

    def binds(self, name: str) -> bool:
        """Tell whether the module itself always binds a name, by whatever statement."""
        return any(b.name == name and "." not in b.qualname and not b.guards for b in self.blocks)

    def around(self, line: int, name: str = "") -> tuple[Block, ...]:
        """List the functions (of that name) which hold a line of the text as it is now."""
        start = len(self.text) - len(self.text.removeprefix(_BOM))
        for match in islice(NEWLINE.finditer(self.text), line - 1):
            start = match.end()
        return tuple(
            block
            for block in self.blocks
            if block.kind == "function"
            and block.name == (name or block.name)
            and block.start <= start < block.end
        )

    def cut(self, block: Block) -> str:
        """Give a block's text."""
        return self.text[block.start : block.end]

    def splice(self, start: int, end: int, text: str) -> Source:
        """Replace a range of whole lines and move the blocks behind it.

        Blocks inside the range keep their start and lose what can no longer be told: nested
        definitions are dropped from the outline.
        """
        shift = len(text) - (end - start)
        blocks = []
        for block in self.blocks:
            if block.start >= end and not (block.start == end == start and block.end == start):
                blocks.append(replace(block, start=block.start + shift, end=block.end + shift))
            elif block.start <= start and block.end >= end:
                blocks.append(replace(block, end=block.end + shift))
            elif block.end <= start:
                blocks.append(block)
        joined = self.text[:start] + text + self.text[end:]
        return replace(self, text=joined, blocks=tuple(blocks))


def read_source(path: PurePosixPath, data: bytes, pieces: Pieces | None = None) -> Source:
    """Decode and outline a file.

    Args:
        pieces: what the definitions of files read before were found to hold, to be added to.

    Raises:
        Refused: the bytes are not text in the declared encoding, or not Python.
    """
    try:
        # A cookie stands on one of the first two lines, and lone CRs end lines, too.
        lines = _BARE_CR.sub(b"\n", data) if b"\r" in data else data
        encoding, _ = detect_encoding(io.BytesIO(lines).readline)
        if encoding == "utf-8-sig":
            encoding = "utf-8"
        text = data.decode(encoding)
        faithful = encoding == "utf-8" or text.encode(encoding) == data
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Unparsable(path, f"cannot be decoded: {error}") from error
    if not faithful:
        raise Refused(
            f"{path}: cannot be edited in its encoding {encoding}: it has more than one form for "
            "the same text, and bytes that need not change would; save the file as UTF-8"
        )
    if "\0" in text:
        raise Unparsable(path, "does not parse: it contains null bytes")
    try:
        blocks = None
        if pieces is not None:
            from sgl_npu_patch.engine.text.pieces import outline_pieces

            blocks = outline_pieces(text, pieces)
        if blocks is None:
            blocks = [*_outline(path, text)]
        return Source(path, text, encoding, tuple(blocks))
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unparsable(path, f"does not parse: {error}") from error


def _outline(path: PurePosixPath, text: str) -> Iterator[Block]:
    body = text.removeprefix(_BOM)
    try:
        module = ast.parse(body, filename=str(path))
    except SyntaxError as error:
        from sgl_npu_patch.engine.text.newer_syntax import outline_with_libcst

        yield from outline_with_libcst(path, text, error)
        return
    ends = [len(text) - len(body), *(match.end() for match in NEWLINE.finditer(text)), len(text)]
    yield from walk(module.body, ends, "", ())


_COMPOUND: dict[type[ast.AST], tuple[str, ...]] = {
    ast.If: ("body", "orelse"),
    ast.For: ("body", "orelse"),
    ast.AsyncFor: ("body", "orelse"),
    ast.While: ("body", "orelse"),
    ast.With: ("body",),
    ast.AsyncWith: ("body",),
    ast.Try: ("body", "handlers", "orelse", "finalbody"),
    ast.ExceptHandler: ("body",),
    ast.Match: ("cases",),
    ast.match_case: ("body",),
}
"""The statements that hold others, and where; a lookup by type, since every statement is asked."""
if sys.version_info >= (3, 11):
    _COMPOUND[ast.TryStar] = _COMPOUND[ast.Try]


def walk(
    body: Sequence[ast.AST], ends: list[int], scope: str, guards: tuple[str, ...]
) -> Iterator[Block]:
    for node in body:
        if type(node) in _COMPOUND:
            for field in _COMPOUND[type(node)]:
                inner = (*guards, type(node).__name__.lower())
                yield from walk(getattr(node, field), ends, scope, inner)
        elif isinstance(node, _DEFINITIONS):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            kind: Kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield _block(kind, node.name, scope, ends, first, node, guards)
            yield from walk(node.body, ends, f"{scope}{node.name}.", ())
        elif scope:
            continue
        elif isinstance(node, _ASSIGNMENTS):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield _block("assignment", name.id, scope, ends, node.lineno, node, guards)
        elif isinstance(node, _IMPORTS):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                yield _block("import", bound, scope, ends, node.lineno, node, guards)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_IMPORTS = (ast.Import, ast.ImportFrom)


def _block(
    kind: Kind,
    name: str,
    scope: str,
    ends: list[int],
    first: int,
    node: ast.stmt,
    guards: tuple[str, ...],
) -> Block:
    assert node.end_lineno is not None
    return Block(
        kind, name, scope + name, ends[first - 1], ends[node.end_lineno], node.lineno, guards
    )


def find_uses(name: str, text: str) -> Iterator[Use]:
    """Yield the uses of a name as a function: calls, definitions, and what is neither.

    A string that equals the name counts as another use of it (``getattr``).

    Raises:
        AnchorError: the text has syntax newer than this interpreter's.
    """
    ends = [0, *(match.end() for match in NEWLINE.finditer(text))]
    lines = {bisect(ends, match.start()) for match in re.finditer(rf"\b{name}\b", text)}
    if not lines:
        return
    try:
        yield from _uses(name, ast.parse(text.removeprefix(_BOM)), lines, called=False)
    except (SyntaxError, RecursionError) as error:
        raise AnchorError(
            sought=f"the uses of {name}",
            expected="a file in this interpreter's syntax",
            found=f"one that it does not parse: {error}",
            action="run sgl-npu-patch with a newer Python",
        ) from error


def _uses(name: str, node: ast.AST, lines: set[int], *, called: bool) -> Iterator[Use]:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is not None and last is not None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([first, *(decorator.lineno for decorator in node.decorator_list)])
        if lines.isdisjoint(range(first, last + 1)):
            return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
        yield Use(node.lineno, "definition")
    elif (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    ):
        yield Use(node.lineno, "call" if called else "other")
    elif (isinstance(node, ast.Constant) and node.value == name) or (
        isinstance(node, ast.alias) and name in (node.name, node.asname)
    ):
        yield Use(node.lineno, "other")
    for child in ast.iter_child_nodes(node):
        is_called = isinstance(node, ast.Call) and child is node.func
        yield from _uses(name, child, lines, called=is_called)
