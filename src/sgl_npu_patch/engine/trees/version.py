"""Find the version of a package: the one that it states, or that of the nearest tag."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from sgl_npu_patch.engine.trees import git
from sgl_npu_patch.engine.trees.directory import DirectoryTree, SourceTree
from sgl_npu_patch.engine.trees.revision import GitTree

VERSION_FILES = ("_version.py", "version.py")
_VERSION = re.compile(rb"""^__version__ *= *(?:\w+ *= *)*["']([^"'\n]+)""", re.MULTILINE)


def stated_version(tree: SourceTree) -> str | None:
    """Return the version that the package's files state, None if they state none."""
    for name in VERSION_FILES:
        data = tree.read(tree.package / name)
        match = _VERSION.search(data) if data else None
        if match:
            return match.group(1).decode("ascii", "replace")
    return None


def package_version(tree: SourceTree) -> str | None:
    """Return the version that a package states, or else that of the commit that it is from.

    A checkout may lack the file that states it: packaging writes it from the tags of git.
    """
    return stated_version(tree) or _described(tree)


def has_own_tags(tree: GitTree) -> bool:
    """Report whether the tags of a revision's repository are versions of the package."""
    return tree.prefix / tree.package == _own(tree)


def _described(tree: SourceTree) -> str | None:
    if isinstance(tree, GitTree):
        commit = tree.revision if has_own_tags(tree) else None
        return git.describe(tree.repository, [commit])[0] if commit else None
    if isinstance(tree, DirectoryTree):
        root = git.work_tree(tree.root)
        if root is not None and tree.root.resolve() / tree.package == root / _own(tree):
            return git.describe(root, ["HEAD"])[0]
    return None


def _own(tree: SourceTree) -> PurePosixPath:
    """Return where the package stands in a repository of its own; a copy has other tags."""
    return PurePosixPath(tree.project.layouts[0])
