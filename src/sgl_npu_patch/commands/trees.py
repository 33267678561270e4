"""Open the tree that a command is about, and plan the series on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from sgl_npu_patch.commands.options import read_path
from sgl_npu_patch.commands.output import warn
from sgl_npu_patch.engine.errors import UsageError

if TYPE_CHECKING:
    from sgl_npu_patch.engine.plan import Plan
    from sgl_npu_patch.engine.seam import Seam
    from sgl_npu_patch.engine.trees.directory import SourceTree


def all_seams() -> Mapping[str, Seam]:
    """Return the series; importing it takes longer than reading a tree."""
    from sgl_npu_patch.codemods import SERIES

    return SERIES


def documentation(seam: str) -> str:
    """Return the docstring of a seam's codemod."""
    import inspect
    from importlib import import_module

    return inspect.getdoc(import_module(f"sgl_npu_patch.codemods.{seam}")) or ""


def opened(
    path: str, revision: str | None = None, *, name: str = "PATH"
) -> AbstractContextManager[SourceTree]:
    """Open a tree.

    Args:
        name: what the help calls the path.
    """
    from sgl_npu_patch.codemods.upstream.project import PROJECT
    from sgl_npu_patch.engine.trees.open import open_tree

    if revision == "":
        raise UsageError("REV is empty; give a commit, tag or branch")
    return open_tree(read_path(path, name), PROJECT, revision)


def warn_of_copies(tree: SourceTree) -> None:
    """Warn of other copies of the package."""
    from sgl_npu_patch.engine.apply import copy_warnings

    for warning in copy_warnings(tree):
        warn(warning)


@contextmanager
def planned(
    path: str, revision: str | None, only: Sequence[str] | None, skip: Sequence[str] | None
) -> Iterator[tuple[SourceTree, Plan]]:
    """Open a tree, plan the chosen seams on it, and warn of what the plan leaves out."""
    from sgl_npu_patch.engine.apply import choose, plan

    selected = choose(all_seams(), only or (), skip or ())
    with opened(path, revision) as tree:
        made = plan(tree, all_seams(), selected)
        for warning in made.warnings:
            warn(warning)
        yield tree, made
