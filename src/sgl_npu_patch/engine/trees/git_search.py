"""Search the Python files of revisions for names, each content once.

Folders and contents are the same object in most revisions. So for every blob it is remembered which
of the names sought so far it contains, and for every folder which of its files contain any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sgl_npu_patch.engine.trees.directory import is_source
from sgl_npu_patch.engine.trees.git_contents import Contents
from sgl_npu_patch.engine.trees.git_folders import FOLDER, SUBMODULE, Folders, refuse_links

_Files = tuple[tuple[str, str], ...]
_NOTHING: tuple[int, _Files] = (0, ())
_UNREAD = (0, 0)


class Search:
    """Find the files below a folder that contain a needle.

    All contents are searched for stems: needles, or parts that several needles have in common. A
    content is scanned for all stems known by then, and again for those that come later.
    """

    def __init__(
        self, label: str, stems: Iterable[bytes], folders: Folders, contents: Contents
    ) -> None:
        self._label = label
        self._folders = folders
        self._contents = contents
        self._stems = [*stems]
        self._scanned: dict[str, tuple[int, int]] = {}
        """By blob: for how many stems it was scanned, and which it contains, as bits."""
        self._found: dict[str, tuple[int, _Files]] = {}
        """By folder: for how many stems it was searched, and which files contain any."""
        self._whole: dict[tuple[bytes, str], bool] = {}
        self._listed: tuple[str, dict[str, str]] = ("", {})

    def clear(self) -> None:
        """Forget what was found in folders, but not in contents."""
        self._found.clear()

    def holding(self, needle: bytes, tree: str, name: str) -> tuple[str, ...]:
        """List the Python files below a folder that contain a needle, by their paths in it.

        Args:
            tree: the folder's id.
            name: its path, for messages.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        stem, place = self._stem_of(needle)
        count, files = self._found.get(tree, _NOTHING)
        if count <= place:
            files = self.search(tree, name)
        return tuple(
            path
            for path, blob in files
            if self._scanned[blob][1] >> place & 1 and (stem == needle or self._has(needle, blob))
        )

    def with_any(self, needles: Iterable[bytes], blobs: Iterable[str]) -> set[str]:
        """Find the contents that hold at least one of some needles."""
        sought = [(needle, *self._stem_of(needle)) for needle in needles]
        wanted = [*dict.fromkeys(blobs)]
        self._scan_all(wanted)
        any_stem = sum({1 << place for _, _, place in sought})
        return {
            blob
            for blob in wanted
            if self._scanned[blob][1] & any_stem
            and any(
                self._scanned[blob][1] >> place & 1 and (stem == needle or self._has(needle, blob))
                for needle, stem, place in sought
            )
        }

    def search(self, tree: str, name: str) -> _Files:
        """List the files below a folder that contain any stem, with their blobs.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        if self._listed[0] == tree:
            blobs = self._listed[1]
        else:
            blobs, complete = self._list(tree, name)
            self._listed = (tree, blobs) if complete else ("", {})
        self._scan_all([*dict.fromkeys(blobs.values())], tree)
        if self._listed[0] != tree:
            return self._below(tree)
        found = tuple((path, blob) for path, blob in blobs.items() if self._scanned[blob][1])
        self._found[tree] = (len(self._stems), found)
        return found

    def _stem_of(self, needle: bytes) -> tuple[bytes, int]:
        """Return the stem that finds a needle, and its number; a needle without one becomes one."""
        for place, stem in enumerate(self._stems):
            if stem == needle or (stem and stem in needle):
                return stem, place
        self._stems.append(needle)
        return needle, len(self._stems) - 1

    def _has(self, needle: bytes, blob: str) -> bool:
        """Report whether a content that contains the stem of a needle contains all of it."""
        if (needle, blob) not in self._whole:
            self._whole[needle, blob] = needle in self._contents[blob]
        return self._whole[needle, blob]

    def _scan_all(self, blobs: Sequence[str], tree: str | None = None) -> None:
        """Scan contents for every stem.

        Args:
            tree: a folder that holds all of them.
        """
        count = len(self._stems)
        unread = []
        for blob in blobs:
            if self._scanned.get(blob, _UNREAD)[0] < count:
                if blob in self._contents:
                    self._scan(blob, self._contents[blob])
                else:
                    unread.append(blob)
        for blob, data in self._contents.read(unread, tree):
            self._scan(blob, data)
            if self._scanned[blob][1]:
                self._contents.keep(blob, data)

    def _scan(self, blob: str, data: bytes) -> None:
        known, found = self._scanned.get(blob, _UNREAD)
        stems = self._stems
        for place in range(known, len(stems)):
            if stems[place] in data:
                found |= 1 << place
        self._scanned[blob] = (len(stems), found)

    def _list(self, tree: str, name: str) -> tuple[dict[str, str], bool]:
        """List the files below a folder, level by level, and report whether these are all.

        Folders that were searched for every stem are left out.
        """
        count = len(self._stems)
        files: dict[str, str] = {}
        level = [("", tree)]
        complete = True
        while level:
            self._folders.read(folder for _, folder in level)
            inner: list[tuple[str, str]] = []
            for above, folder in level:
                for last, (mode, found) in self._folders[folder].items():
                    if mode == FOLDER:
                        if not _is_searched(last):
                            continue
                        if self._found.get(found, _NOTHING)[0] < count:
                            inner.append((f"{above}{last}/", found))
                        else:
                            complete = False
                    elif is_source(last) or (mode == SUBMODULE and _is_searched(last)):
                        refuse_links(self._label, f"{name}/{above}{last}", mode)
                        files[f"{above}{last}"] = found
            level = inner
        return files, complete

    def _below(self, tree: str) -> _Files:
        """List the files below a folder whose parts were all searched, as `search` does."""
        count, files = self._found.get(tree, _NOTHING)
        if count == len(self._stems):
            return files
        found: list[tuple[str, str]] = []
        for last, (mode, inner) in self._folders[tree].items():
            if mode == FOLDER:
                if _is_searched(last):
                    found += [(f"{last}/{path}", blob) for path, blob in self._below(inner)]
            elif is_source(last) and self._scanned[inner][1]:
                found.append((last, inner))
        self._found[tree] = (len(self._stems), tuple(found))
        return self._found[tree][1]


def _is_searched(folder: str) -> bool:
    return not folder.startswith(".") and folder != "__pycache__"
