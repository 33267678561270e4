"""Print what a run found out about many trees for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import PurePosixPath
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from sgl_npu_patch.reports.text import STYLES, console_for, evidence_lines, wrapped

Document = Mapping[str, Any]
_NAMED = 3
"""How many seams of one status are named rather than counted."""


def render(document: Document, stream: IO[str] | None = None) -> str:
    """Give one line a tree, then each conflict once, then what differs from the baseline.

    Args:
        stream: where it will be printed; colour and folding are for terminals only.
    """
    console = console_for(stream or StringIO())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tree", "version", "statuses"):
        table.add_column(column, overflow="fold")
    for result in document["results"]:
        table.add_row(Text(result["name"]), result["tree"]["version"] or "", _statuses(result))
    with console.capture() as printed:
        console.print(table)
        for remark in _remarks(document["results"]):
            console.print(Text("\n" + "\n".join(remark)), soft_wrap=True)
        if document["changes"]:
            console.print(Text("\nchanged since the baseline"))
            console.print(_changes(document["changes"]))
            for change in document["changes"]:
                for line in _blame(change):
                    console.print(Text(line), soft_wrap=True)
        console.print(Text(f"\n{_count(document)}"))
    return printed.get()


def render_bisect(
    changes: Sequence[Document], commits: int, judged: int, stream: IO[str] | None = None
) -> str:
    """Give each commit at which a status changed, and what it did to the symbols concerned."""
    console = console_for(stream or StringIO())
    with console.capture() as printed:
        for change in changes:
            seam = change["seam"] or "the tree"
            console.print(Text(f"{seam}: {change['before']} -> {change['after']}", style="bold"))
            for label in ("commit", "date", "subject"):
                console.print(Text(f"  {label:<9}{change[label]}"), soft_wrap=True)
            console.print()
            for line in change["diff"].splitlines():
                style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
                console.print(Text(line, style=style), soft_wrap=True)
            console.print()
        console.print(Text(f"{judged} of {commits} commits were judged"))
    return printed.get()


def _statuses(result: Document) -> Text:
    if "error" in result:
        return Text(f"refused: {result['error']['message']}", style="red")
    seams: dict[str, list[str]] = {}
    for outcome in result["outcomes"]:
        seams.setdefault(outcome["status"], []).append(outcome["seam"])
    parts = []
    for status, names in seams.items():
        counted = len(names) > _NAMED and status != "conflict"
        told = f"{len(names)} {status}" if counted else f"{status} {', '.join(names)}"
        parts.append(Text(told, style=STYLES[status]))
    checks = Counter(check["verdict"] for check in result.get("checks", ()))
    if checks:
        style = "bold red" if checks["fail"] else "green"
        parts.append(Text(f"{checks['pass']} checks passed, {checks['fail']} failed", style=style))
    return Text("; ").join(parts)


def _remarks(results: list[Document]) -> Iterator[list[str]]:
    """Tell each conflict and each failed check once, with the trees that have it."""
    trees: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        for outcome in result["outcomes"]:
            if "evidence" in outcome:
                shown = evidence_lines(outcome["seam"], _evidence(outcome["evidence"]))
                trees.setdefault(tuple(shown), []).append(result["name"])
        for check in result.get("checks", ()):
            if check["verdict"] == "fail":
                said = check["message"].splitlines()[0]
                gap = f" (gap {check['gap']})" if check["gap"] else ""
                told = wrapped(f"FAIL {check['id']}{gap}: {said}", "", "  ")
                trees.setdefault(tuple(told), []).append(result["name"])
    for lines, names in trees.items():
        yield [*lines, *wrapped(", ".join(names), "  trees    ", " " * 11)]


def _evidence(found: Document) -> Any:
    from sgl_npu_patch.engine.errors import Site
    from sgl_npu_patch.engine.plan import Evidence

    where = (Site(PurePosixPath(s["path"]), s["line"], s["symbol"]) for s in found["where"])
    return Evidence(**{**found, "where": tuple(where)})


def _changes(changes: list[Document]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tree", "seam", "before", "after"):
        table.add_column(column, overflow="fold")
    for change in changes:
        after = Text(change["after"], style=STYLES.get(change["after"].partition(" ")[0], ""))
        table.add_row(Text(change["name"]), change["seam"], change["before"], after)
    return table


def _blame(change: Document) -> Iterator[str]:
    if change.get("commit"):
        yield ""
        yield f"{change['seam']} of {change['name']}: {change['commit'][:12]} {change['subject']}"
        yield f"  {change['date']}"
        yield from (f"  {line}" for line in change["diff"].splitlines())


def _count(document: Document) -> str:
    results = document["results"]
    refused = sum("error" in result for result in results)
    conflicts = sum(
        any(outcome["status"] == "conflict" for outcome in result["outcomes"]) for result in results
    )
    return f"{len(results)} trees: {conflicts} with conflicts, {refused} refused"
