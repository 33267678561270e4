"""Print a plan for people: a table of statuses, then what deserves a sentence."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sgl_npu_patch.reports import conflicts
from sgl_npu_patch.reports.codec import Document, Tree, read_tree
from sgl_npu_patch.reports.console import counted, paragraph, printed, table_of
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.statuses import STYLES, legend

if TYPE_CHECKING:
    from rich.console import Console

    from sgl_npu_patch.engine.model import Outcome

_FILES = 10
"""How many files are listed."""


def render(document: Document, target: Target) -> str:
    """Return headline, table, legend, reasons, gaps, evidence, and the files concerned."""
    tree = read_tree(document)

    def show(console: Console) -> None:
        from rich.text import Text

        gaps = any(outcome.gaps for outcome in tree.outcomes)
        columns = ("seam", "status", "where", *(["gaps"] if gaps else ()))
        rows = [
            (
                Text(outcome.seam),
                Text(_status(outcome), style=STYLES[outcome.status]),
                Text(_where(outcome)),
                *([Text("\n".join(outcome.gaps), style="yellow")] if gaps else ()),
            )
            for outcome in tree.outcomes
        ]
        console.print(Text(f"{tree.title}: {_headline(tree, document)}"))
        console.print()
        console.print(table_of(columns, rows))
        lines = ["", *paragraph(legend(tree.outcomes)), *_remarks(tree)]
        lines += _files(tree, document, target)
        for line in lines:
            console.print(Text(line), soft_wrap=True)

    return printed(target.stream, show)


def _headline(tree: Tree, document: Document) -> str:
    if any(outcome.status == "conflict" for outcome in tree.outcomes):
        return "conflicts, nothing is written"
    changed, added = len(document["changed"]), len(document["added"])
    if not changed and not added:
        return "nothing to change"
    change, add = ("changed", "added") if _written(tree) else ("change", "add")
    parts = [f"{change} {counted(changed, 'file')}"] if changed else []
    if added:
        parts.append(f"{add} {added}" if changed else f"{add} {counted(added, 'file')}")
    return ("" if _written(tree) else "would ") + " and ".join(parts)


def _written(tree: Tree) -> bool:
    return any(outcome.status == "applied" for outcome in tree.outcomes)


def _status(outcome: Outcome) -> str:
    return f"{outcome.status} (outdated)" if outcome.outdated else outcome.status


def _where(outcome: Outcome) -> str:
    if not outcome.sites:
        return ""
    first = outcome.sites[0]
    place = f"{first.path}:{first.line}" if first.line else str(first.path)
    more = len(outcome.sites) - 1
    return f"{place} and {more} more" if more else place


def _remarks(tree: Tree) -> Iterator[str]:
    for evidence, seams in conflicts.causes(tree.outcomes):
        yield ""
        yield from paragraph(conflicts.title(seams))
        yield from conflicts.evidence_lines(evidence)
    for outcome in tree.outcomes:
        if outcome.status == "withheld":
            yield ""
            yield from paragraph(f"withheld {outcome.seam}: {outcome.reason}")
    for gap in tree.gaps:
        yield ""
        yield f"gap {gap.name} of {gap.seam}"
        yield from conflicts.gap_lines(gap)


def _files(tree: Tree, document: Document, target: Target) -> Iterator[str]:
    written = _written(tree)
    for key, label in (("changed", "change"), ("added", "add")):
        names = document[key]
        if names:
            yield ""
            yield f"{key if written else f'would {label}'}:"
            yield from (f"  {name}" for name in names[:_FILES])
            if len(names) > _FILES:
                yield f"  and {len(names) - _FILES} more"
    if "wheel" in document:
        yield ""
        if document["wheel"] is not None:
            yield f"{'wrote' if written else 'would write'} {document['wheel']}"
        elif not any(outcome.status == "conflict" for outcome in tree.outcomes):
            yield "no wheel is written: it is as wanted"
    elif written and document["added"] and _in_git(target):
        yield ""
        yield f"next: {_git_add(document['tree']['path'], document['added'])}"


def _in_git(target: Target) -> bool:
    from sgl_npu_patch.engine.trees import git
    from sgl_npu_patch.engine.trees.directory import DirectoryTree

    return isinstance(target.tree, DirectoryTree) and git.work_tree(target.tree.root) is not None


def _git_add(path: str, names: Sequence[str]) -> str:
    there = [] if path == "." else ["-C", path]
    return shlex.join(["git", *there, "add", *names])
