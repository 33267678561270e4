"""Print an audit for people, and as the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

from sgl_npu_patch.engine.trees.directory import SourceTree, full_name
from sgl_npu_patch.engine.trees.version import package_version
from sgl_npu_patch.reports.document import document, render_rows, site_document
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.text import console_for, paragraph

if TYPE_CHECKING:
    from sgl_npu_patch.audit.baseline import Row
    from sgl_npu_patch.audit.catalogue import Verdict

_STYLES: dict[Verdict, str] = {
    "native": "bold red",
    "unknown": "yellow",
    "replaced": "green",
    "invariant": "dim",
}


def render_document(tree: SourceTree, rows: Sequence[Row]) -> str:
    """Give the document of design.md with the list ``calls``."""
    calls = [
        {
            "kind": row.call.kind,
            "operator": row.call.name,
            "verdict": row.call.verdict,
            "finding": row.is_finding,
            "known": row.known,
            "why": row.call.operator.why,
            "covered_by": row.call.operator.covered_by,
            "source": row.call.operator.source,
            "site": site_document(row.call.site),
        }
        for row in rows
    ]
    return f"{render_rows(document(tree, None) | {'calls': calls})}\n"


def print_audit(
    tree: SourceTree, rows: Sequence[Row], shown: Sequence[Row], stream: IO[str]
) -> None:
    """Print the counts, one line a call, then what is known of each operator."""
    from rich.table import Table
    from rich.text import Text

    console = console_for(stream)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("verdict", "operator", "where"):
        table.add_column(column, overflow="fold")
    for row in shown:
        verdict = row.call.verdict + (" (known)" if row.known else "")
        style = "dim" if row.known else _STYLES[row.call.verdict]
        place = visible(str(row.call.site))
        table.add_row(Text(verdict, style=style), Text(_name(row)), Text(place))
    version = package_version(tree) or "of unknown version"
    # Written at once by ourselves: rich ends the program when the reader has gone.
    with console.capture() as printed:
        console.print(Text(f"SGLang {version} in {full_name(tree)}: {count(rows)}"))
        if shown:
            console.print()
            console.print(table)
        for line in _reasons(shown):
            console.print(Text(line), soft_wrap=True)
    stream.write(printed.get())


def count(rows: Sequence[Row]) -> str:
    """Count the findings in words."""
    findings = [row for row in rows if row.is_finding]
    unknown = sum(row.call.verdict == "unknown" for row in findings)
    known = sum(row.known for row in findings)
    told = [
        f"{len(rows)} calls on the NPU path",
        f"{len(findings) - unknown} native",
        f"{unknown} unknown",
        *([f"{known} of them in the baseline"] if known else []),
    ]
    return ", ".join(told)


def _name(row: Row) -> str:
    return row.call.name + (" (by value)" if row.call.kind == "by-value" else "")


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Say once why, for all operators of which the same is known."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        names.setdefault((row.call.operator.why, row.call.about), {})[row.call.name] = None
    for (why, about), operators in names.items():
        yield ""
        told = f"{', '.join(operators)}: {why}" + (f" See {about}." if about else "")
        yield from paragraph(told, "", "  ")
