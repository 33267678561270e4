"""Print the results of checks for people, and as part of the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO, Any

from sgl_npu_patch.reports.document import site_document
from sgl_npu_patch.reports.text import console_for, wrapped
from sgl_npu_patch.verify.results import Result, Verdict

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "not-applicable")
_SAID: dict[Verdict, str] = {"pass": "pass", "fail": "FAIL", "not-applicable": "n/a"}
_STYLES: dict[Verdict, str] = {"pass": "green", "fail": "bold red", "not-applicable": "dim"}
_SERIES = "series"
"""The heading of what belongs to no seam alone."""


def check_documents(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Give the list ``checks`` of the document of design.md."""
    return [
        {
            "id": result.id,
            "seam": result.seam,
            "kind": result.kind,
            "verdict": result.verdict,
            "message": result.message,
            "site": site_document(result.site) if result.site is not None else None,
            "meaning": result.meaning,
            "expected": result.expected,
            "found": result.found,
            "code": result.code,
            "action": result.action,
            "gap": result.gap,
            "measured": result.measured,
        }
        for result in results
    ]


def by_seam(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Group results by their seams, in the order in which the seams come first."""
    order = {seam: place for place, seam in reversed(list(enumerate(r.seam for r in results)))}
    ordered = sorted(results, key=lambda result: (not result.seam, order[result.seam]))
    for seam, group in groupby(ordered, key=lambda result: result.seam):
        yield seam or _SERIES, list(group)


def count(results: Sequence[Result]) -> str:
    """Count the verdicts in words."""
    passed, failed, no = (sum(r.verdict == verdict for r in results) for verdict in VERDICTS)
    return f"{passed} passed, {failed} failed, {no} not applicable"


def print_checks(results: Sequence[Result], headline: str, stream: IO[str]) -> None:
    """Print one line a check, then every failure in full, then the counts."""
    from rich.text import Text

    console = console_for(stream)
    # Written at once by ourselves: rich ends the program when the reader has gone.
    with console.capture() as printed:
        console.print(Text(headline))
        for seam, group in by_seam(results):
            console.print(Text(f"\n{seam}", style="bold"), soft_wrap=True)
            for result in group:
                line = Text(f"  {_SAID[result.verdict]:<4}", style=_STYLES[result.verdict])
                told, *more = _told(result)
                name = result.id.removeprefix(f"{seam}.")
                line.append(f"  {name}: {told}", style="default")
                if result.measured and result.kind != "measured":
                    line.append(f" (measured on {result.measured})", style="cyan")
                console.print(line, soft_wrap=True)
                for text in more:
                    console.print(Text(f"          {text}"), soft_wrap=True)
        for result in results:
            if result.verdict == "fail":
                console.print(Text("\n" + "\n".join(failure_lines(result))), soft_wrap=True)
        console.print(Text(f"\n{count(results)}"))
    stream.write(printed.get())


def failure_lines(result: Result) -> list[str]:
    """Lay out one failure: both sides, the code that shows it, the seam, what to do."""
    lines = [f"FAIL {result.id}" + (f" (gap {result.gap})" if result.gap else "")]
    if result.expected or result.found:
        lines += _row("expected", result.expected) + _row("found", result.found)
    else:
        lines += _row("found", result.message)
    code = result.code.splitlines()
    for number, text in enumerate(code):
        lines.append(f"  {'code' if not number else '':<9}{text}".rstrip())
    lines += _row("where", str(result.site) if result.site is not None else "")
    if result.seam:
        lines += _row("seam", f"{result.seam}: sgl-npu-patch explain {result.seam}")
    return lines + _row("next", result.action)


def _row(label: str, text: str) -> list[str]:
    return wrapped(text, f"  {label:<9}", " " * 11) if text else []


def _told(result: Result) -> list[str]:
    """Say what the verdict means; a failure is told in full below."""
    return [result.meaning] if result.verdict == "fail" else result.message.splitlines() or [""]
