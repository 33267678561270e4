"""Print what was found out about a machine, for people and as the JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from sgl_npu_patch.kit import facts
from sgl_npu_patch.reports.document import about_tree, header
from sgl_npu_patch.reports.text import console_for, wrapped

if TYPE_CHECKING:
    from sgl_npu_patch.engine.trees.directory import SourceTree
    from sgl_npu_patch.kit.doctor import Examination

_SAID = {facts.WRONG: "WRONG", facts.UNSEEN: "not seen"}
_STYLES = {facts.OK: "green", facts.WRONG: "bold red", facts.UNSEEN: "yellow", facts.NOTE: "cyan"}
_ABLE = {
    True: "This machine can run the result",
    False: "This machine cannot run the result",
    None: "Whether this machine can run the result cannot be told",
}


def doctor_document(found: Examination, tree: SourceTree | None) -> dict[str, Any]:
    """Give the document; ``tree`` is null where none was asked about."""
    about: dict[str, Any] = header() | {"tree": None} if tree is None else about_tree(tree)
    return about | {
        "able": found.able,
        "chip": found.chip,
        "versions": found.versions,
        "facts": [asdict(fact) for fact in found.facts],
    }


def print_examination(found: Examination, stream: IO[str]) -> None:
    """Print one line a fact, then what to do about those that are wrong or not seen."""
    from rich.table import Table
    from rich.text import Text

    console = console_for(stream)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("fact", "verdict", "found"):
        table.add_column(column, overflow="fold")
    for fact in found.facts:
        said = Text(_SAID.get(fact.verdict, fact.verdict), style=_STYLES[fact.verdict])
        table.add_row(Text(fact.id), said, Text(fact.found))
    counts = f"{found.count(facts.WRONG)} wrong, {found.count(facts.UNSEEN)} not seen"
    # Written at once by ourselves: rich ends the program when the reader has gone.
    with console.capture() as printed:
        console.print(Text(f"{_ABLE[found.able]}: {counts}\n"))
        console.print(table)
        actions = dict.fromkeys(fact.action for fact in found.facts if fact.action)
        lines = [line for action in actions for line in wrapped(action, "next: ", "      ")]
        if lines:
            console.print(Text("\n" + "\n".join(lines)), soft_wrap=True)
    stream.write(printed.get())
