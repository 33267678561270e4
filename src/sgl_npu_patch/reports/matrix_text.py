"""Print the results of `matrix` for people: one row a tree, one column a seam."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sgl_npu_patch.reports.codec import Document, Tree
from sgl_npu_patch.reports.console import paragraph, printed
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.matrix import (
    Matrix,
    checks_said,
    headline,
    named,
    read_matrix,
    remarks,
)
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.statuses import STYLES, legend

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
_MARK = "*"
_CHECKS = "checks"
_FEW = 3
"""Commits that stay on rows of their own beside the first."""
_FOLDED = 10
"""Columns of a heading that stays on one line: the longest status has as many."""


def render(document: Document, target: Target) -> str:
    """Return the table, then what deserves a sentence, each remark once for all its trees.

    On a terminal, a table that is wider is printed in parts.
    """
    matrix = read_matrix(document)

    def show(console: Console) -> None:
        from rich.text import Text

        console.print(Text(headline(matrix)))
        _print_tables(matrix, console)
        for line in (*_legend(matrix), *_remark_lines(matrix)):
            console.print(Text(visible(line)), soft_wrap=True)

    return "\n".join(_inert(line) for line in printed(target.stream, show).split("\n"))


def _inert(line: str) -> str:
    """Keep a line of foreign text from being a command to the server whose log it is in."""
    return re.sub(r"^(\s*):(?=:)", r"\1\\x3a", line).replace("##[", r"#\x23[")


def _print_tables(matrix: Matrix, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = list(_rows(matrix))
    left = max(len(name) for name in ("tree", *(name for name, _ in rows)))
    for part in _parts(matrix, rows, console.width - left):
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for title in ("tree", *map(_heading, part)):
            table.add_column(title, overflow="fold", vertical="bottom", no_wrap=True)
        for name, tree in rows:
            cells = [Text(_word(tree, column), style=_style(tree, column)) for column in part]
            table.add_row(Text(name), *cells)
        console.print()
        console.print(table)


def _legend(matrix: Matrix) -> Iterator[str]:
    told = legend((outcome for tree in matrix.trees for outcome in tree.outcomes), _MARK)
    if told:
        yield ""
        yield from paragraph(told)


def _rows(matrix: Matrix) -> Iterator[tuple[str, Tree]]:
    """Pair each tree with its name; adjacent commits of a range that say the same are one row."""
    for _, group in groupby(matrix.trees, _row_key):
        first, *others = group
        if len(others) < _FEW:
            yield from ((tree.name, tree) for tree in (first, *others))
        else:
            yield f"{first.name} to {others[-1].name}, {len(others) + 1} commits", first


def _row_key(tree: Tree) -> tuple[object, ...]:
    """Return what the rows of two commits of a range have in common if they say the same."""
    commit = tree.revision.startswith(tree.name)
    return ("" if commit else tree.name, tree.error, tree.outcomes, tree.results)


def _parts(matrix: Matrix, rows: Sequence[tuple[str, Tree]], width: int) -> Iterator[list[str]]:
    """Divide the columns among tables of at most this width, one column at least."""
    part: list[str] = []
    taken = 0
    for column in (*matrix.seams, *([_CHECKS] if matrix.verified else ())):
        words = [*_heading(column).splitlines(), *(_word(tree, column) for _, tree in rows)]
        needed = _GAP + max(map(len, words))
        if part and taken + needed > width:
            yield part
            part, taken = [], 0
        part.append(column)
        taken += needed
    if part:
        yield part


def _heading(column: str) -> str:
    return column.replace("_", "_\n") if len(column) > _FOLDED else column


def _word(tree: Tree, column: str) -> str:
    if tree.error:
        return "-"
    if column == _CHECKS:
        return checks_said(tree)
    outcome = tree.outcome(column)
    if outcome is None:
        return ""
    return outcome.status + (_MARK if outcome.outdated or outcome.gaps else "")


def _style(tree: Tree, column: str) -> str:
    if column == _CHECKS:
        return "bold red" if tree.failures else "green"
    outcome = tree.outcome(column)
    return "" if outcome is None else STYLES[outcome.status]


def _remark_lines(matrix: Matrix) -> Iterator[str]:
    for change in matrix.changes:
        yield ""
        yield from paragraph(f"new: {change}", "", "  ")
        if change.commit:
            yield from paragraph(change.commit, "  commit   ", " " * 11)
        yield from (f"  {line}" for line in change.diff.splitlines())
    for remark in remarks(matrix):
        yield ""
        known = " (in the baseline)" if remark.known else ""
        yield from paragraph(f"{remark.title} on {named(remark.names)}{known}", "", "  ")
        for line in remark.lines:
            # Evidence is laid out already.
            yield from [line] if line.startswith(" ") else paragraph(line, "  ", "  ")
