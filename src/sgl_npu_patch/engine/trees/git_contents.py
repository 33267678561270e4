"""Read the contents of files: git's blobs, as stored, each once as far as memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.git_objects import Objects
from sgl_npu_patch.engine.trees.partial import PartialClone

_KEPT = 48 << 20
"""Bytes of contents to keep; one release has about 30 MB of Python."""


class Contents:
    """Keep contents by the id of their blob; what was asked for last is dropped last."""

    def __init__(self, objects: Objects, origin: PartialClone) -> None:
        self._objects = objects
        self._origin = origin
        self._kept: dict[str, bytes] = {}
        self._size = 0

    def __contains__(self, blob: str) -> bool:
        return blob in self._kept

    def __getitem__(self, blob: str) -> bytes:
        """Return the bytes of a blob.

        Raises:
            Refused: it is missing.
        """
        if blob in self._kept:
            data = self._kept[blob] = self._kept.pop(blob)
            return data
        for _, data in self.read([blob]):
            self.keep(blob, data)
        return data

    def read(self, blobs: Sequence[str], tree: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield blobs with their bytes without keeping them, and fetch what is missing.

        Args:
            tree: a folder that holds all of them.

        Raises:
            Refused: one is missing and cannot be fetched.
        """
        left = iter(blobs)
        try:
            for blob, (_, data) in zip(blobs, self._objects.get(blobs), strict=True):
                yield blob, data
                next(left)
        except Refused:
            missing = [*left]
            if not self._origin.fetch(missing, tree):
                raise
            for blob, (_, data) in zip(missing, self._objects.get(missing), strict=True):
                yield blob, data

    def keep(self, blob: str, data: bytes) -> None:
        """Keep the bytes of a blob, and drop others if there are too many."""
        self._kept[blob] = data
        self._size += len(data)
        while self._size > _KEPT and len(self._kept) > 1:
            self._size -= len(self._kept.pop(next(iter(self._kept))))
