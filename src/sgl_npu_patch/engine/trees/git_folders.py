"""Read the folders of revisions: git's trees, each once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.git_objects import Objects

FOLDER, LINK, SUBMODULE = 0o040000, 0o120000, 0o160000
_KEPT = 5_000
"""How many folders to keep; one release has about 300, and most commits change about five."""

Entry = tuple[int, str]
"""Mode and object id, as a git tree has them."""


class Folders:
    """Keep what stands in each folder, by the id of its tree."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._entries: dict[str, dict[str, Entry]] = {}

    def __getitem__(self, tree: str) -> dict[str, Entry]:
        """Return the entries of a folder by their names.

        Raises:
            Refused: it is missing.
        """
        if tree not in self._entries:
            self.read([tree])
        return self._entries[tree]

    @property
    def full(self) -> bool:
        """Report whether there are more than are worth keeping."""
        return len(self._entries) > _KEPT

    def clear(self) -> None:
        """Drop all folders."""
        self._entries.clear()

    def read(self, trees: Iterable[str]) -> None:
        """Read many folders by one question.

        Raises:
            Refused: one is missing.
        """
        wanted = [tree for tree in dict.fromkeys(trees) if tree not in self._entries]
        for tree, (kind, data) in zip(wanted, self._objects.get(wanted), strict=True):
            assert kind == "tree", kind
            self._entries[tree] = dict(_entries(data, len(tree) // 2))


def refuse_links(label: str, name: str, mode: int) -> None:
    """Refuse an entry that stands for something else, which is nowhere followed.

    Raises:
        Refused: it is a link or a submodule.
    """
    kinds = {LINK: "symbolic link", SUBMODULE: "submodule"}
    if mode in kinds:
        raise Refused(
            f"{label}: {name} is a {kinds[mode]} in this revision, which is not followed; "
            "check the revision out and give that folder"
        )


def _entries(data: bytes, size: int) -> Iterator[tuple[str, Entry]]:
    start = 0
    while start < len(data):
        end = data.index(b"\0", start)
        mode, _, name = data[start:end].partition(b" ")
        start = end + 1 + size
        yield os.fsdecode(name), (int(mode, 8), data[end + 1 : start].hex())
