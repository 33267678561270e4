"""Hold pending file contents over a tree, without touching the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import libcst as cst

from sgl_npu_patch.engine.model import ChangeSet, FileChange
from sgl_npu_patch.engine.text.source import Source, read_source
from sgl_npu_patch.engine.text.uses import NameUse, find_uses
from sgl_npu_patch.engine.trees.directory import SourceTree

if TYPE_CHECKING:
    from sgl_npu_patch.engine.text.pieces import Pieces


_CONTENTS = 100
"""How many files to keep for further trees; about five of a tree are outlined."""


@dataclass(slots=True)
class Cache:
    """Cache what is derived from contents, so that each is read once a run."""

    sources: dict[tuple[PurePosixPath, bytes], Source] = field(default_factory=dict)
    modules: dict[str, cst.Module] = field(default_factory=dict)
    uses: dict[tuple[str, str], list[NameUse]] = field(default_factory=dict)
    mentions: dict[bytes, tuple[PurePosixPath, ...]] = field(default_factory=dict)
    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    defining: dict[tuple[PurePosixPath, str, str], bool] = field(default_factory=dict)
    pieces: Pieces | None = None

    def for_another_tree(self) -> Cache:
        """Return a cache that shares what depends on contents alone, not on a tree."""
        pieces = self.pieces or {}
        if len(self.sources) > _CONTENTS:
            return Cache(pieces={})
        return Cache(self.sources, self.modules, self.uses, spans=self.spans, pieces=pieces)

    def uses_of(self, name: str, text: str) -> list[NameUse]:
        """Collect the uses of a name in a file's text."""
        key = (name, text)
        if key not in self.uses:
            self.uses[key] = list(find_uses(name, text))
        return self.uses[key]

    def module(self, text: str) -> cst.Module:
        """Parse a piece of source with libcst."""
        if text not in self.modules:
            self.modules[text] = cst.parse_module(text)
        return self.modules[text]


@dataclass(slots=True)
class Overlay:
    """Read a tree with pending contents in the place of its own."""

    tree: SourceTree
    cache: Cache = field(default_factory=Cache)
    pending: dict[PurePosixPath, Source | bytes] = field(default_factory=dict)

    def fork(self) -> Overlay:
        """Return a copy whose writes are not seen here."""
        return Overlay(self.tree, self.cache, dict(self.pending))

    def merge(self, other: Overlay) -> None:
        """Take over the pending contents of a fork."""
        self.pending.update(other.pending)

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's pending or original bytes, None if there is no such file."""
        pending = self.pending.get(path)
        if isinstance(pending, Source):
            return pending.encode()
        return pending if pending is not None else self.tree.read(path)

    def source(self, path: PurePosixPath) -> Source | None:
        """Return a file decoded and outlined, None if there is no such file."""
        pending = self.pending.get(path)
        if isinstance(pending, Source):
            return pending
        data = self.read(path)
        if data is None:
            return None
        key = (path, data)
        if key not in self.cache.sources:
            self.cache.sources[key] = read_source(path, data, self.cache.pieces)
        return self.cache.sources[key]

    def write(self, path: PurePosixPath, content: Source | bytes) -> None:
        """Set a file's pending content."""
        self.pending[path] = content

    def mentioning(self, name: str) -> tuple[PurePosixPath, ...]:
        """List the Python files whose bytes contain an ASCII name, sorted."""
        found = [path for path in self._mentioned(name.encode("ascii")) if path not in self.pending]
        for path, content in self.pending.items():
            text: bytes | str = content.text if isinstance(content, Source) else content
            if (name if isinstance(text, str) else name.encode("ascii")) in text:  # type: ignore[operator]
                found.append(path)
        return tuple(sorted(found))

    def _mentioned(self, needle: bytes) -> tuple[PurePosixPath, ...]:
        """Search the tree itself."""
        mentions = self.cache.mentions
        if needle not in mentions:
            stems = self.tree.project.stems
            stem = next((stem for stem in stems if stem in needle and stem != needle), None)
            among = self._mentioned(stem) if stem else None
            mentions[needle] = self.tree.containing(needle, among)
        return mentions[needle]

    def changes(self) -> ChangeSet:
        """Compare all pending contents with the tree."""
        found = []
        for path in sorted(self.pending):
            before, after = self.tree.read(path), self.read(path)
            if after is not None and after != before:
                found.append(FileChange(path, before, after))
        return ChangeSet(tuple(found))
