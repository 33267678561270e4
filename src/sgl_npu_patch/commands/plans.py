"""Report what a plan holds, and the exit code that follows from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sgl_npu_patch.commands import exits
from sgl_npu_patch.reports.formats import Target, render

if TYPE_CHECKING:
    from sgl_npu_patch.engine.plan import Plan
    from sgl_npu_patch.engine.trees.directory import SourceTree


def report(
    tree: SourceTree,
    plan: Plan,
    output: str,
    *,
    with_diff: bool = False,
    wheel: tuple[Path | None] | None = None,
) -> Iterator[str | bytes]:
    """Yield the parts of the report.

    Args:
        with_diff: add the unified diff, behind the text or inside the JSON; no other format has it.
        wheel: the patched wheel, where one was asked for; None in it if none was needed.
    """
    from sgl_npu_patch.reports.codec import tree_document

    document = tree_document(tree, plan)
    if wheel is not None:
        document["wheel"] = None if wheel[0] is None else str(wheel[0])
    if with_diff and output == "json":
        document["diff"] = diff(tree, plan).decode("utf-8", "replace")
    yield render(output, "plan", document, Target(sys.stdout, tree))
    if with_diff and output == "text":
        yield "\n"
        yield diff(tree, plan)


def text_report(tree: SourceTree, plan: Plan, stream: IO[str]) -> str:
    """Return the report for people."""
    from sgl_npu_patch.reports.codec import tree_document

    return render("text", "plan", tree_document(tree, plan), Target(stream, tree))


def diff(tree: SourceTree, plan: Plan) -> bytes:
    """Return the unified diff of a plan."""
    from sgl_npu_patch.engine.trees.open import prefix_of
    from sgl_npu_patch.reports.diff import render_diff

    return render_diff(plan.changes, prefix_of(tree))


def exit_code(plan: Plan, *, strict: bool = False, pending: bool = False) -> int:
    """Return the exit code.

    Args:
        strict: what is withheld or has gaps is not as wanted.
        pending: nor is what would change.
    """
    if plan.conflicts:
        return exits.CONFLICT
    if (pending and plan.changes.changes) or (strict and plan.incomplete):
        return exits.NOT_AS_WANTED
    return exits.OK
