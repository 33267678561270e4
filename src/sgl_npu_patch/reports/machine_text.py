"""Print what was found out about a machine for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sgl_npu_patch.kit import facts
from sgl_npu_patch.reports.codec import Document
from sgl_npu_patch.reports.console import paragraph, printed, table_of
from sgl_npu_patch.reports.formats import Target

if TYPE_CHECKING:
    from rich.console import Console

_SAID = {facts.WRONG: "WRONG", facts.UNSEEN: "not seen"}
_STYLES = {facts.OK: "green", facts.WRONG: "bold red", facts.UNSEEN: "yellow", facts.NOTE: "cyan"}
_ABLE: Mapping[bool | None, str] = {
    True: "This machine can run the result",
    False: "This machine cannot run the result",
    None: "Whether this machine can run the result cannot be told",
}


def render(document: Document, target: Target) -> str:
    """Return one line a fact, then what to do about those that are wrong or not seen."""
    found = document["facts"]
    verdicts = [fact["verdict"] for fact in found]
    counts = f"{verdicts.count(facts.WRONG)} wrong, {verdicts.count(facts.UNSEEN)} not seen"
    actions = dict.fromkeys(fact["action"] for fact in found if fact["action"])
    lines = [line for action in actions for line in paragraph(action, "next: ", "      ")]

    def show(console: Console) -> None:
        from rich.text import Text

        rows = [
            (
                Text(fact["id"]),
                Text(_SAID.get(fact["verdict"], fact["verdict"]), style=_STYLES[fact["verdict"]]),
                Text(fact["found"]),
            )
            for fact in found
        ]
        console.print(Text(f"{_ABLE[document['able']]}: {counts}\n"))
        console.print(table_of(("fact", "verdict", "found"), rows))
        if lines:
            console.print(Text("\n" + "\n".join(lines)), soft_wrap=True)

    return printed(target.stream, show)
