"""Patch a tree: the functions behind every command.

    with open_tree(Path("tree"), PROJECT) as tree:
        result = apply(tree, plan(tree, SERIES))

``open_tree(path, project, revision=None)``, of `engine.trees.open`, gives the tree.
``choose(series, only=(), skip=())`` gives the names of the seams to judge.
``plan(tree, series, selected=None)`` judges them and writes nothing; the plan has the outcomes, the
changes, and what to warn of.
``prove(plan)`` judges the result of a plan: it must leave nothing to do.
``apply(tree, plan, allow_dirty=False)`` writes a plan to a folder, all or nothing, and proves it.
``wheel_target(tree, plan, out)`` and ``apply_to_wheel(tree, plan, target)`` write a new wheel.
``check_writable(path, revision)`` refuses, before anything is read, what `apply` cannot write to.
``copy_warnings(tree)`` gives warnings for commands that plan nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sgl_npu_patch.engine.errors import Conflicting, Refused, UsageError
from sgl_npu_patch.engine.plan import Plan, choose, make_plan, prove
from sgl_npu_patch.engine.seam import Seam
from sgl_npu_patch.engine.trees.directory import DirectoryTree, SourceTree
from sgl_npu_patch.engine.trees.open import is_archive, open_tree

if TYPE_CHECKING:
    from sgl_npu_patch.engine.trees.wheel import WheelTree

__all__ = [
    "apply",
    "apply_to_wheel",
    "check_writable",
    "choose",
    "copy_warnings",
    "open_tree",
    "plan",
    "prove",
    "wheel_target",
]

_SHOWN = 5
"""How many files with uncommitted changes a message names."""


def plan(
    tree: SourceTree, series: Mapping[str, Seam], selected: Iterable[str] | None = None
) -> Plan:
    """Judge the chosen seams, and add what an installation records of its files.

    Raises:
        Refused: a file cannot be read or parsed, or the tree is too old.
        UsageError: the choice of seams breaks a requirement on this tree.
    """
    made = make_plan(tree, series, selected)
    warnings = copy_warnings(tree)
    if isinstance(tree, DirectoryTree):
        from sgl_npu_patch.engine.record import record

        recorded = record(tree, made.changes)
        made = replace(made, changes=recorded.changes)
        warnings += recorded.warnings
    return replace(made, warnings=warnings)


def apply(tree: SourceTree, plan: Plan, *, allow_dirty: bool = False) -> Plan:
    """Write a plan to the folder that it was made for, every file or none.

    Args:
        allow_dirty: write although git shows uncommitted changes in these files.

    Returns:
        The plan, in which what was pending is applied.

    Raises:
        Conflicting: a seam is in conflict.
        Interrupted: a signal came meanwhile; everything is as before.
        Refused: there are uncommitted changes, or a file cannot be written.
        UsageError: the tree is not in a folder.
    """
    _check_no_conflict(plan)
    if not isinstance(tree, DirectoryTree):
        raise UsageError(f"{tree.label}: only a tree in a folder can be written to")
    if plan.changes.changes:
        from sgl_npu_patch.engine.commit import commit

        if not allow_dirty:
            _check_clean(tree, plan)
        commit(tree.root, plan.changes, lambda: prove(plan))
    return plan.as_applied()


def wheel_target(tree: WheelTree, plan: Plan, out: Path) -> Path | None:
    """Return where the patched wheel goes, None if nothing would change in it.

    Args:
        out: a folder, or a path with the very name that the new wheel must have.

    Raises:
        Refused: there is something at that place, or the name is another one.
    """
    from sgl_npu_patch.engine.trees.wheel_writer import target_of

    return target_of(tree, out) if plan.changes.changes else None


def apply_to_wheel(tree: WheelTree, plan: Plan, target: Path) -> Plan:
    """Write a new wheel with the plan's changes; the tree's own file stays as it is.

    Raises:
        Conflicting: a seam is in conflict.
        Refused: a member differs from RECORD, or the target cannot be written.
    """
    from sgl_npu_patch.engine.trees.wheel_writer import write_wheel

    _check_no_conflict(plan)
    prove(plan)
    dropped = write_wheel(tree, plan.changes, target)
    warnings = tuple(
        f"{name} is left out of the patched wheel, where it would not hold any more"
        for name in dropped
    )
    return replace(plan.as_applied(), warnings=(*plan.warnings, *warnings))


def check_writable(path: Path, revision: str | None = None) -> None:
    """Insist that a path names what can be written in place.

    Raises:
        UsageError: it is a revision or an archive; the message says what to do instead.
    """
    if revision is not None:
        raise UsageError(
            "apply writes to a checkout, not to a revision: check it out (`git worktree add`) and "
            "apply there, or pass --check, or see `diff --rev`"
        )
    if is_archive(path):
        how = (
            f"`apply --wheel {path} OUT` writes a patched copy"
            if path.suffix == ".whl"
            else "unpack it and apply there"
        )
        raise UsageError(f"apply does not write into an archive: {how}; or pass --check")


def copy_warnings(tree: SourceTree) -> tuple[str, ...]:
    """Warn of copies of the package beside the one that is read."""
    return tuple(
        f"{copy} is another copy of the package, which is neither examined nor patched: "
        f"only {tree.package} is"
        for copy in tree.copies()
    )


def _check_no_conflict(plan: Plan) -> None:
    if plan.conflicts:
        raise Conflicting(tuple(outcome.seam for outcome in plan.conflicts))


def _check_clean(tree: DirectoryTree, plan: Plan) -> None:
    from sgl_npu_patch.engine.trees import git

    root = git.work_tree(tree.root)
    if root is None:
        return
    targets = [tree.root / change.path for change in plan.changes.changes]
    dirty = git.uncommitted(root, targets)
    merging = sorted(git.unmerged(root).intersection(dirty))
    if merging:
        raise Refused(
            f"unmerged files would be written: {_some(merging)}; nothing was changed; "
            "resolve the merge, `git add` them, and commit"
        )
    if dirty:
        raise Refused(
            f"uncommitted changes in files that would be written: {_some(dirty)}; "
            "nothing was changed; commit or stash them, or pass --allow-dirty"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
