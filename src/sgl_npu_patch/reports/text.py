"""Print a plan for people: a table of statuses, then what deserves a sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from sgl_npu_patch.engine.model import Evidence, Outcome
    from sgl_npu_patch.engine.plan import Plan

_WIDTH = 100
_UNFOLDED = 10_000
"""Columns where there is no terminal: a path in a log must stay in one piece."""
STYLES = {
    "applied": "green",
    "pending": "yellow",
    "already": "green",
    "upstream": "cyan",
    "not-needed": "dim",
    "withheld": "yellow",
    "conflict": "bold red",
}


def console_for(stream: IO[str]) -> Console:
    """Give a console that uses colour and folds lines on a terminal only."""
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        width=None if terminal else _UNFOLDED,
        highlight=False,
        soft_wrap=False,
    )


def print_plan(plan: Plan, headline: str, stream: IO[str]) -> None:
    """Print headline, table, reasons, gaps and evidence; colour on a terminal only."""
    from rich.table import Table
    from rich.text import Text

    console = console_for(stream)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("seam", "status", "where"):
        table.add_column(column, overflow="fold")
    for outcome in plan.outcomes:
        status = outcome.status + (" (outdated)" if outcome.outdated else "")
        table.add_row(
            outcome.seam, Text(status, style=STYLES[outcome.status]), Text(_where(outcome))
        )
    # Written at once by ourselves: rich ends the program when the reader has gone.
    with console.capture() as printed:
        console.print(Text(headline))
        console.print()
        console.print(table)
        for line in _remarks(plan):
            console.print(Text(line), soft_wrap=True)
    stream.write(printed.get())


def evidence_lines(seam: str, evidence: Evidence) -> list[str]:
    """Lay out one conflict in at most 24 lines of 100 columns."""
    rows = [
        ("sought", evidence.sought),
        ("expected", evidence.expected),
        ("found", evidence.found),
        *(("where", str(site)) for site in evidence.where[:6]),
        ("nearest", evidence.nearest),
        ("next", evidence.action),
    ]
    lines = [f"conflict in {seam}"]
    for label, text in rows:
        if text:
            lines += wrapped(text, f"  {label:<9}", " " * 11)
    return lines


def wrapped(text: str, first: str, others: str) -> list[str]:
    """Fold a text to at most three lines."""
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, max_lines=3)


def paragraph(text: str, first: str, others: str) -> list[str]:
    """Fold a text of any length."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def _where(outcome: Outcome) -> str:
    if not outcome.sites:
        return ""
    first = outcome.sites[0]
    place = f"{first.path}:{first.line}" if first.line else str(first.path)
    more = len(outcome.sites) - 1
    return f"{place} and {more} more" if more else place


def _remarks(plan: Plan) -> Iterator[str]:
    for outcome in plan.outcomes:
        if outcome.evidence is not None:
            yield ""
            yield from evidence_lines(outcome.seam, outcome.evidence)
        elif outcome.status == "withheld":
            yield ""
            yield from paragraph(f"withheld {outcome.seam}: {outcome.reason}", "", "  ")
        elif outcome.gaps:
            yield ""
            yield from paragraph(f"gaps of {outcome.seam}: {', '.join(outcome.gaps)}", "", "  ")
