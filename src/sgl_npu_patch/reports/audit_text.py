"""Print an audit for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.reports.codec import Document, read_site, read_tree
from sgl_npu_patch.reports.console import counted, paragraph, printed, table_of
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.plain import visible

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Mapping[str, str] = {
    "native": "bold red",
    "unknown": "yellow",
    "replaced": "green",
    "invariant": "dim",
}
Call = Mapping[str, Any]


def render(document: Document, target: Target) -> str:
    """Return the counts, one line a call, then what is known of each operator."""
    calls: Sequence[Call] = document["calls"]

    def show(console: Console) -> None:
        from rich.text import Text

        rows = [
            (
                Text(
                    call["verdict"] + (" (known)" if call["known"] else ""),
                    style="dim" if call["known"] else _STYLES[call["verdict"]],
                ),
                Text(call["operator"] + (" (by value)" if call["kind"] == "by-value" else "")),
                Text(visible(str(read_site(call["site"])))),
            )
            for call in calls
        ]
        console.print(Text(f"{read_tree(document).title}: {_count(document)}"))
        if rows:
            console.print()
            console.print(table_of(("verdict", "operator", "where"), rows))
        for line in _reasons(calls):
            console.print(Text(line), soft_wrap=True)

    return printed(target.stream, show)


def _count(document: Document) -> str:
    """Count the findings in words."""
    findings = [call for call in document["calls"] if call["finding"]]
    unknown = sum(call["verdict"] == "unknown" for call in findings)
    known = sum(call["known"] for call in findings)
    told = [
        f"{counted(document['total'], 'call')} on the NPU path",
        f"{len(findings) - unknown} native",
        f"{unknown} unknown",
        *([f"{known} of them in the baseline"] if known else []),
    ]
    return ", ".join(told)


def _reasons(calls: Sequence[Call]) -> Iterator[str]:
    """Yield once why, for all operators of which the same is known."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for call in calls:
        reason = (call["why"], call["covered_by"] or "")
        names.setdefault(reason, {})[call["operator"]] = None
    for (why, about), operators in names.items():
        yield ""
        see = f" See {about}." if about else ""
        yield from paragraph(f"{', '.join(operators)}: {why}{see}")
