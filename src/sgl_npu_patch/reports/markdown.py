"""Print the results of `matrix` as Markdown for a pull request, an issue or a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from sgl_npu_patch.reports.codec import Document, Tree
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.matrix import Matrix, checks_said, headline, read_matrix, remarks
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.statuses import legend, said


def render(document: Document, target: Target) -> str:
    """Return what is new, the table, and each remark behind a line that opens it.

    Foreign text stands in code only, where nothing is markup, a mention or a link.
    """
    matrix = read_matrix(document)
    lines = [f"**{headline(matrix)}**", ""]
    lines += _news(matrix)
    lines += _table(matrix)
    for remark in remarks(matrix):
        known = " (in the baseline)" if remark.known else ""
        names = escape(", ".join(remark.names))
        title = f"{escape(visible(remark.title))} on <code>{names}</code>{known}"
        lines += _folded(title, "\n".join(remark.lines), "text")
    return "\n".join(lines) + "\n"


def _folded(title: str, text: str, language: str) -> list[str]:
    """Return a block behind a line that opens it; the title is HTML."""
    shown = visible(text, "\n\t")
    fence = "`" * max(3, _longest_run(shown) + 1)
    block = [f"{fence}{language}", shown.rstrip("\n"), fence]
    return ["", f"<details><summary>{title}</summary>", "", *block, "", "</details>"]


def _news(matrix: Matrix) -> Iterator[str]:
    for change in matrix.changes:
        yield f"- new: {_code(str(change))}"
        if change.commit:
            yield f"  - since {_code(change.commit)}"
    for change in matrix.changes:
        if change.diff:
            title = f"what that commit did to <code>{escape(visible(str(change)))}</code>"
            yield from _folded(title, change.diff, "diff")
    if matrix.changes:
        yield ""


def _table(matrix: Matrix) -> Iterator[str]:
    columns = (*matrix.seams, *(["checks"] if matrix.verified else ()))
    if not matrix.trees:
        return
    yield f"| tree |{''.join(f' {_cell(column)} |' for column in columns)}"
    yield f"|---|{'---|' * len(columns)}"
    for tree in matrix.trees:
        cells = "".join(f" {_status(tree, column)} |" for column in columns)
        yield f"| {_cell(tree.name)} |{cells}"
    yield ""
    yield legend(outcome for tree in matrix.trees for outcome in tree.outcomes)


def _status(tree: Tree, column: str) -> str:
    if tree.error:
        return "-"
    if column == "checks":
        return checks_said(tree)
    outcome = tree.outcome(column)
    if outcome is None:
        return ""
    return f"**{said(outcome)}**" if outcome.status == "conflict" else said(outcome)


def _cell(text: str) -> str:
    r"""Write code in a table, whose cells a ``|`` would end even there."""
    return _code(visible(text).replace("|", r"\x7c"))


def _code(text: str) -> str:
    shown = visible(text)
    fence = "`" * (_longest_run(shown) + 1)
    # One space on each side is taken off again, so that a backtick may stand first or last.
    pad = " " if shown[:1] in ("", "`", " ") or shown[-1:] in ("`", " ") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
