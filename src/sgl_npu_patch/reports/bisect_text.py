"""Print the commits at which statuses changed for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sgl_npu_patch.reports.codec import Document
from sgl_npu_patch.reports.console import counted, printed
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.plain import visible

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Mapping[str, str] = {"+": "green", "-": "red", "@": "cyan"}


def render(document: Document, target: Target) -> str:
    """Return each commit, and what it did to the symbols concerned."""

    def show(console: Console) -> None:
        from rich.text import Text

        for change in document["changes"]:
            seam = change["seam"] or "the tree"
            console.print(Text(f"{seam}: {change['before']} -> {change['after']}", style="bold"))
            for label in ("commit", "date", "subject", "merge"):
                if label not in change:
                    continue
                console.print(Text(f"  {label:<9}{visible(change[label])}"), soft_wrap=True)
            console.print()
            for line in change["diff"].splitlines():
                style = _STYLES.get(line[:1], "")
                console.print(Text(visible(line, "\t"), style=style), soft_wrap=True)
            console.print()
        total = counted(document["commits"] + 1, "commit")
        console.print(Text(f"{document['judged']} of {total} were examined"))

    return printed(target.stream, show)
