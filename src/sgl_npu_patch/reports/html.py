"""Print the results of `matrix` as one page that needs nothing else, not even a script.

What a cell has to say is a popover, which browsers open by mouse and keyboard themselves. So the
page's own policy forbids scripts, requests and forms: foreign text could not do anything even if it
were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, replace
from importlib import resources

from sgl_npu_patch.engine.model import Outcome, Result
from sgl_npu_patch.reports.checks_text import SERIES, by_seam
from sgl_npu_patch.reports.codec import Document, OpenGap, Tree
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.hunks import seam_diff
from sgl_npu_patch.reports.matrix import Matrix, headline, named, read_matrix, remarks
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.statuses import legend, said


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one cell says and opens.

    Attributes:
        kind: the status, which the style colours, or "failed" where a check fails.
        diff: the part of the tree's diff that belongs to the seam.
    """

    seam: str
    kind: str
    said: str
    changed: str
    outcome: Outcome | None
    gaps: tuple[OpenGap, ...]
    results: tuple[Result, ...]
    diff: str

    @property
    def failures(self) -> int:
        return sum(result.verdict == "fail" for result in self.results)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A popover shared by all cells with the same content."""

    id: str
    cell: _Cell
    names: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    tree: Tree
    cells: tuple[_Opened | None, ...]


def render(document: Document, target: Target) -> str:
    """Return the page: what deserves a sentence, and the table of trees by seams."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else visible(str(value), "\n\t")

    matrix = read_matrix(document)
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _packaged("matrix.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    columns = _columns(matrix)
    opened: dict[_Cell, _Opened] = {}
    rows = [_row(matrix, tree, f"t{i}", columns, opened) for i, tree in enumerate(matrix.trees)]
    return environment.from_string(_packaged("matrix.html.j2")).render(
        matrix=matrix,
        headline=headline(matrix),
        legend=legend(outcome for tree in matrix.trees for outcome in tree.outcomes),
        remarks=remarks(matrix),
        columns=columns,
        rows=rows,
        opened=opened.values(),
        named=named,
        style=Markup(style),  # noqa: S704  # our own file
        digest=digest,
    )


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _columns(matrix: Matrix) -> tuple[str, ...]:
    """List the seams, and a column more for checks of no seam alone."""
    alone = any(not result.seam for tree in matrix.trees for result in tree.results)
    return (*matrix.seams, *([SERIES] if alone else ()))


def _row(
    matrix: Matrix, tree: Tree, name: str, columns: tuple[str, ...], opened: dict[_Cell, _Opened]
) -> _Row:
    cells: list[_Opened | None] = []
    for seam in columns:
        cell = _cell(matrix, tree, seam)
        if cell is None:
            cells.append(None)
            continue
        cells.append(opened.setdefault(cell, _Opened(f"c{len(opened)}", cell, [])))
        opened[cell].names.append(tree.name)
    return _Row(name, tree, tuple(cells))


def _cell(matrix: Matrix, tree: Tree, seam: str) -> _Cell | None:
    outcome = tree.outcome(seam)
    results = tuple(dict(by_seam(tree.results)).get(seam, ()))
    if outcome is None:
        failed = any(result.verdict == "fail" for result in results)
        kind = "failed" if failed else "already"
        return _Cell(seam, kind, "checks", "", None, (), results, "") if results else None
    changed = [c for c in matrix.changes if (c.name, c.key) == (tree.name, seam)]
    edited = outcome.status == "pending" or outcome.outdated
    cell = _Cell(
        seam=seam,
        kind=outcome.status,
        said=said(outcome),
        changed="; ".join(f"{c.before} before {c.commit}".rstrip() for c in changed),
        outcome=outcome,
        gaps=tuple(gap for gap in tree.gaps if gap.seam == seam),
        results=results,
        diff=seam_diff(tree.diff, outcome.sites) if edited else "",
    )
    return replace(cell, kind="failed") if cell.failures else cell
