"""Outline parsed Python: where its definitions stand."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["function", "class", "assignment", "import", "statement"]

NEWLINE = re.compile(r"\r\n|\r|\n")
BOM = "\ufeff"


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
    """Yield the blocks of some statements in source order.

    Args:
        ends: where line 0, 1, ... of the text ends; line 0 is empty.
        scope: the classes and functions that hold the statements, each with a dot behind it.
        guards: the compound statements between those and the statements.
    """
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
