"""Outline a file whose syntax is newer than the interpreter that runs this tool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Unparsable
from sgl_npu_patch.engine.text.block import BOM, NEWLINE, Block

_DEEPEST = 150
"""Bracket depth above which libcst's parser is not trusted: at 2,000 it overflows the stack."""
_LONGEST = 3_000
"""Characters of a line from which on its parser is not asked: it takes the square of the time."""


def outline_with_libcst(path: PurePosixPath, text: str, error: SyntaxError) -> Iterator[Block]:
    """List the functions, classes, assignments and imports of a module.

    Raises:
        Refused: libcst cannot parse the file either; the message is that of ``error``.
    """
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    refusal = Unparsable(path, f"does not parse: {error.msg}", error.lineno or 0)
    if _depth(text) > _DEEPEST or max(map(len, text.splitlines()), default=0) > _LONGEST:
        raise refusal from error
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError:
        raise refusal from error
    positions = wrapper.resolve(PositionProvider)
    ends = [
        int(text.startswith(BOM)),
        *(match.end() for match in NEWLINE.finditer(text)),
        len(text),
    ]

    def walk(nodes: list[cst.CSTNode], scope: str, guards: tuple[str, ...]) -> Iterator[Block]:
        for node in nodes:
            if isinstance(node, cst.FunctionDef | cst.ClassDef):
                where = positions[node]
                first = min([where.start.line, *(positions[d].start.line for d in node.decorators)])
                yield Block(
                    "function" if isinstance(node, cst.FunctionDef) else "class",
                    node.name.value,
                    scope + node.name.value,
                    ends[first - 1],
                    ends[where.end.line if where.end.column else where.end.line - 1],
                    where.start.line,
                    guards,
                )
                yield from walk(list(node.body.body), f"{scope}{node.name.value}.", ())
            elif isinstance(node, cst.SimpleStatementLine):
                if scope:
                    continue
                where = positions[node]
                span = (ends[where.start.line - 1], ends[where.end.line])
                for small in node.body:
                    for name in _bound(small):
                        kind = (
                            "import"
                            if isinstance(small, cst.Import | cst.ImportFrom)
                            else ("assignment")
                        )
                        yield Block(kind, name, name, *span, where.start.line, guards)  # type: ignore[arg-type]
            elif isinstance(node, cst.BaseCompoundStatement):
                inner = [
                    child for child in node.children if not isinstance(child, cst.BaseExpression)
                ]
                for child in inner:
                    block = (
                        child if isinstance(child, cst.BaseSuite) else getattr(child, "body", None)
                    )
                    if isinstance(block, cst.BaseSuite):
                        yield from walk(
                            list(block.body), scope, (*guards, type(node).__name__.lower())
                        )

    yield from walk(list(wrapper.module.body), "", ())


def _bound(small: object) -> list[str]:
    import libcst as cst

    if isinstance(small, cst.Assign):
        targets = [target.target for target in small.targets]
    elif isinstance(small, cst.AnnAssign | cst.AugAssign):
        targets = [small.target]
    elif isinstance(small, cst.Import | cst.ImportFrom):
        if isinstance(small.names, cst.ImportStar):
            return []
        return [
            alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in small.names
        ]
    else:
        return []
    return [target.value for target in targets if isinstance(target, cst.Name)]


def _depth(text: str) -> int:
    deepest = depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", text):
        depth += 1 if bracket.group() in "([{" else -1
        deepest = max(deepest, depth)
    return deepest
