"""Hold pending file contents over a tree, without touching the tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sgl_npu_patch.engine.source import Source, read_source
from sgl_npu_patch.engine.tree import SourceTree


@dataclass(frozen=True, slots=True)
class FileChange:
    """Pair a file's bytes as read with those to write; ``before`` is None for a new file."""

    path: PurePosixPath
    before: bytes | None
    after: bytes


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """List the files to write, sorted by path, each one different from what was read."""

    changes: tuple[FileChange, ...]

    @property
    def changed(self) -> tuple[PurePosixPath, ...]:
        """List the existing files that get other bytes."""
        return tuple(change.path for change in self.changes if change.before is not None)

    @property
    def added(self) -> tuple[PurePosixPath, ...]:
        """List the files that are new."""
        return tuple(change.path for change in self.changes if change.before is None)


@dataclass(slots=True)
class Overlay:
    """Answer like the tree below it, but with pending contents first.

    ``parsed`` is shared between all overlays of a run: a file is outlined once for each of its
    contents.
    """

    tree: SourceTree
    parsed: dict[tuple[PurePosixPath, bytes], Source] = field(default_factory=dict)
    pending: dict[PurePosixPath, Source | bytes] = field(default_factory=dict)

    def fork(self) -> Overlay:
        """Give a copy whose writes are not seen here."""
        return Overlay(self.tree, self.parsed, dict(self.pending))

    def merge(self, other: Overlay) -> None:
        """Take over the pending contents of a fork."""
        self.pending.update(other.pending)

    def read(self, path: PurePosixPath) -> bytes | None:
        """Give a file's pending or original bytes, None if there is no such file."""
        pending = self.pending.get(path)
        if isinstance(pending, Source):
            return pending.encode()
        return pending if pending is not None else self.tree.read(path)

    def source(self, path: PurePosixPath) -> Source | None:
        """Give a file decoded and outlined, None if there is no such file."""
        pending = self.pending.get(path)
        if isinstance(pending, Source):
            return pending
        data = self.read(path)
        if data is None:
            return None
        key = (path, data)
        if key not in self.parsed:
            self.parsed[key] = read_source(path, data)
        return self.parsed[key]

    def write(self, path: PurePosixPath, content: Source | bytes) -> None:
        """Set a file's pending content."""
        self.pending[path] = content

    def mentioning(self, name: str) -> Iterable[PurePosixPath]:
        """List the package's Python files whose bytes contain an ASCII name."""
        needle = name.encode("ascii")
        for path in self.tree.paths():
            data = self.read(path)
            if data is not None and needle in data:
                yield path
        for path, content in self.pending.items():
            if isinstance(content, bytes) and needle in content and path not in self.tree.paths():
                yield path

    def changes(self) -> ChangeSet:
        """Compare all pending contents with the tree."""
        found = []
        for path in sorted(self.pending):
            before, after = self.tree.read(path), self.read(path)
            if after is not None and after != before:
                found.append(FileChange(path, before, after))
        return ChangeSet(tuple(found))
