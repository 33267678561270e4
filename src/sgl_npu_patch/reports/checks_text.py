"""Print the results of checks for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.reports.codec import Document, read_tree
from sgl_npu_patch.reports.console import labelled, printed
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.verify.findings import UNPATCHED

if TYPE_CHECKING:
    from rich.console import Console

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "not-applicable")
_SAID: Mapping[Verdict, str] = {"pass": "pass", "fail": "FAIL", "not-applicable": "n/a"}
_STYLES: Mapping[Verdict, str] = {"pass": "green", "fail": "bold red", "not-applicable": "dim"}
SERIES = "series"
"""The heading of what belongs to no seam alone."""


def render(document: Document, target: Target) -> str:
    """Return one line a check, then every failure in full, then the counts.

    Of a tree that is not patched, one line says so.
    """
    tree = read_tree(document)

    def show(console: Console) -> None:
        from rich.text import Text

        if tree.results == (UNPATCHED,):
            told = f"{tree.title}: {UNPATCHED.message}; {UNPATCHED.action}"
            console.print(Text(told))
            return
        console.print(Text(f"{tree.title}: {count(tree.results)}"))
        for seam, group in by_seam(tree.results):
            console.print(Text(f"\n{seam}", style="bold"), soft_wrap=True)
            for result in group:
                line = Text(f"  {_SAID[result.verdict]:<4}", style=_STYLES[result.verdict])
                first, *more = _told(result)
                name = result.id.removeprefix(f"{seam}.")
                line.append(f"  {name}: {first}", style="default")
                if result.measured and result.kind != "measured":
                    line.append(f" (measured on {result.measured})", style="cyan")
                console.print(line, soft_wrap=True)
                for text in more:
                    console.print(Text(f"          {text}"), soft_wrap=True)
        for result in tree.failures:
            console.print(Text("\n" + "\n".join(failure_lines(result))), soft_wrap=True)
        console.print(Text(f"\n{count(tree.results)}"))

    return printed(target.stream, show)


def by_seam(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Group results by their seams, in the order in which the seams come first."""
    order = {seam: place for place, seam in reversed(list(enumerate(r.seam for r in results)))}
    ordered = sorted(results, key=lambda result: (not result.seam, order[result.seam]))
    for seam, group in groupby(ordered, key=lambda result: result.seam):
        yield seam or SERIES, list(group)


def count(results: Sequence[Result]) -> str:
    """Count the verdicts in words."""
    passed, failed, no = (sum(r.verdict == verdict for r in results) for verdict in VERDICTS)
    return f"{passed} passed, {failed} failed, {no} not applicable"


def failure_lines(result: Result) -> list[str]:
    """Lay out one failure: both sides, the code that shows it, the seam, what to do."""
    lines = [f"FAIL {result.id}" + (f" (gap {result.gap})" if result.gap else "")]
    if result.expected or result.found:
        lines += labelled("expected", result.expected) + labelled("found", result.found)
    else:
        lines += labelled("found", result.message)
    for number, text in enumerate(result.code.splitlines()):
        lines.append(f"  {'code' if not number else '':<9}{text}".rstrip())
    lines += labelled("where", str(result.site) if result.site is not None else "")
    if result.seam:
        lines += labelled("seam", f"{result.seam}: sgl-npu-patch explain {result.seam}")
    return lines + labelled("next", result.action)


def _told(result: Result) -> list[str]:
    """Return what the verdict means; a failure is told in full below."""
    return [result.meaning] if result.verdict == "fail" else result.message.splitlines() or [""]
