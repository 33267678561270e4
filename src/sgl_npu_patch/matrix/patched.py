"""Read a tree as it would be once it is patched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from sgl_npu_patch.engine.model import ChangeSet
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.directory import SourceTree


@dataclass(slots=True)
class Patched:
    """A tree with the files of a change set in it."""

    tree: SourceTree
    label: str
    package: PurePosixPath
    revision: str | None
    written: dict[PurePosixPath, bytes]

    @property
    def project(self) -> Project:
        """Return what is known of the package."""
        return self.tree.project

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package; see `SourceTree.copies`."""
        return self.tree.copies()

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        wanted = None if among is None else set(among)
        below = [path for path in wanted if path not in self.written] if wanted else wanted
        found = {*self.tree.containing(needle, below)} - self.written.keys()
        own = {path for path, data in self.written.items() if needle in data}
        return tuple(sorted(found | (own if wanted is None else own & wanted)))

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        return self.written[path] if path in self.written else self.tree.read(path)


def patched(tree: SourceTree, changes: ChangeSet) -> Patched:
    """Return a tree with a change set in it."""
    written = {change.path: change.after for change in changes.changes}
    return Patched(tree, tree.label, tree.package, tree.revision, written)
