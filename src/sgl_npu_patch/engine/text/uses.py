"""Find the uses of a function's name in a file."""

from __future__ import annotations

import ast
import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.text.block import BOM, NEWLINE


@dataclass(frozen=True, slots=True)
class NameUse:
    """Place one use of a name in a text: on which line, and whether it is called or defined."""

    line: int
    kind: Literal["call", "definition", "other"]


def find_uses(name: str, text: str) -> Iterator[NameUse]:
    """Yield the uses of a function's name: calls, definitions, and what is neither.

    A string that equals the name counts as a use (``getattr``), and so does an import under
    another name.

    Raises:
        AnchorError: the text has syntax newer than this interpreter's.
    """
    ends = [0, *(match.end() for match in NEWLINE.finditer(text))]
    lines = {bisect(ends, match.start()) for match in re.finditer(rf"\b{name}\b", text)}
    if not lines:
        return
    try:
        yield from _uses(name, ast.parse(text.removeprefix(BOM)), lines, called=False)
    except (SyntaxError, RecursionError) as error:
        raise AnchorError(
            sought=f"the uses of {name}",
            expected="a file in this interpreter's syntax",
            found=f"one that it does not parse: {error}",
            action="run sgl-npu-patch with a newer Python",
        ) from error


def _uses(name: str, node: ast.AST, lines: set[int], *, called: bool) -> Iterator[NameUse]:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is not None and last is not None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([first, *(decorator.lineno for decorator in node.decorator_list)])
        if lines.isdisjoint(range(first, last + 1)):
            return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
        yield NameUse(node.lineno, "definition")
    elif (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    ):
        yield NameUse(node.lineno, "call" if called else "other")
    elif first is not None and (
        (isinstance(node, ast.Constant) and node.value == name) or _renames(node, name)
    ):
        yield NameUse(first, "other")
    for child in ast.iter_child_nodes(node):
        is_called = isinstance(node, ast.Call) and child is node.func
        yield from _uses(name, child, lines, called=is_called)


def _renames(node: ast.AST, name: str) -> bool:
    """Report whether an import binds a name to another, under which it may be used unseen.

    One that binds the same name uses nothing by itself: what calls it there is found by the name.
    """
    return (
        isinstance(node, ast.alias)
        and node.asname not in (None, node.name)
        and name in (node.name, node.asname)
    )
