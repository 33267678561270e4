"""Rewrite a definition as text: offsets, indentation and the lines around it.

What a refactoring adds is called ``noted`` something, by which the oracle takes it out again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import PurePosixPath
from random import Random

from tests.refactor.project import Case, Place, base, places

Edit = tuple[int, int, str]
"""Replace the characters from the first offset to the second."""
NOTED = "noted"


def some_place(rng: Random, version: str, names: Iterable[str]) -> Place:
    known = places(version)
    return known[rng.choice([name for name in names if name in known])]


def edited(text: str, edits: Sequence[Edit]) -> str:
    ordered = sorted(enumerate(edits), key=lambda e: (e[1][0], e[1][1], e[0]), reverse=True)
    for _, (start, end, new) in ordered:
        text = text[:start] + new + text[end:]
    return text


def case_of(version: str, place: Place, whole: str) -> Case:
    return Case(version, place.block.name, {**base(version), place.path: whole.encode()})


def case_of_text(version: str, place: Place, text: str) -> Case:
    return Case(version, place.block.name, with_text(version, place, unshelled(text)))


def with_text(version: str, place: Place, text: str) -> dict[PurePosixPath, bytes]:
    return place.rewritten(base(version), unshelled(text))


def parsed(place: Place) -> tuple[ast.Module, str]:
    """Parse a definition alone, a method inside a class."""
    text = place.text
    if text[:1] in " \t":
        text = f"class _:\n{text}"
    return ast.parse(text), text


def unshelled(text: str) -> str:
    return text.removeprefix("class _:\n")


def function_of(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


@cache
def starts(text: str) -> tuple[int, ...]:
    found = [0]
    for line in text.split("\n"):
        found.append(found[-1] + len(line) + 1)
    return tuple(found)


def span(text: str, node: ast.AST) -> tuple[int, int]:
    """Give a node's offsets; ast counts columns in bytes."""
    beginnings, lines = starts(text), text.split("\n")
    assert isinstance(node, ast.expr | ast.stmt | ast.arg)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def offset(line: int, column: int) -> int:
        return beginnings[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def line_start(text: str, node: ast.stmt) -> int | None:
    """Give where a statement's line starts, None if something else stands on it first."""
    start = starts(text)[node.lineno - 1]
    return start if not text[start : span(text, node)[0]].strip() else None


def is_elif(text: str, node: ast.AST) -> bool:
    return isinstance(node, ast.If) and text.startswith("elif", span(text, node)[0])


def indent_of(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))]


def indented(text: str, indent: str) -> str:
    """Indent all lines but those inside strings."""
    tree = ast.parse(text)
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno
        for line in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = text.splitlines(keepends=True)
    return "".join(
        indent + line if line.strip() and number not in inside else line
        for number, line in enumerate(lines, 1)
    )


def behind_imports(text: str) -> int:
    """Give an offset behind the imports at the head of a module."""
    body = ast.parse(text).body
    last = 0
    for node in body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (isinstance(node, ast.Import | ast.ImportFrom) or docstring):
            break
        last = node.end_lineno or 0
    return starts(text)[last]
