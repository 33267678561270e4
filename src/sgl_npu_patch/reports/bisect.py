"""Print the commits at which statuses changed for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import IO, Any

from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.text import console_for

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def render(
    changes: Sequence[Mapping[str, Any]], commits: int, judged: int, stream: IO[str] | None = None
) -> str:
    """Give each commit, and what it did to the symbols concerned.

    Args:
        commits: how many there are between the two ends, ``judged`` of which were judged.
        stream: where it will be printed; colour is for terminals only.
    """
    from rich.text import Text

    console = console_for(stream or StringIO())
    with console.capture() as printed:
        for change in changes:
            seam = change["seam"] or "the tree"
            console.print(Text(f"{seam}: {change['before']} -> {change['after']}", style="bold"))
            for label in ("commit", "date", "subject"):
                console.print(Text(f"  {label:<9}{visible(change[label])}"), soft_wrap=True)
            console.print()
            for line in change["diff"].splitlines():
                style = _STYLES.get(line[:1], "")
                console.print(Text(visible(line, "\t"), style=style), soft_wrap=True)
            console.print()
        console.print(Text(f"{judged} of {commits + 1} commits were judged"))
    return printed.get()
