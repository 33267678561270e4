"""Find the commits of a range that have the document of the commit before, without opening any.

A document depends on which files mention the names that were searched for, and on the content of
the files that were compared. A commit that changes neither changes nothing of it, and git lists
what a commit changes faster than all that it holds can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from sgl_npu_patch.engine.store import Questions
from sgl_npu_patch.engine.trees.directory import is_source
from sgl_npu_patch.engine.trees.repository import Change, Repository
from sgl_npu_patch.engine.trees.version import VERSION_FILES

_REGULAR = (0o100644, 0o100755)
_LEADING = {"python", "sglang", "srt", "build", "__init__.py"}
"""How the paths begin by which the package and its copies are found."""


class RangeDiff:
    """Compare commits with the ones before them, by what differs between the two."""

    def __init__(self, repository: Repository, pairs: Sequence[tuple[str, str]]) -> None:
        self._repository = repository
        self._changes = repository.changes(pairs)
        self._last: tuple[object, set[str]] = (None, set())
        self._mentioning: dict[tuple[str, ...], set[str]] = {}

    def unaffected(
        self, commit: str, package: PurePosixPath, asked: Questions | None, *, search: bool
    ) -> bool:
        """Report whether a commit gives the answers of the one before it; in doubt it does not.

        Args:
            asked: what was asked of the one before, None for all that is in its package.
            search: look into the Python files that differ; without it these are a doubt.
        """
        above = "" if package == PurePosixPath() else f"{package}/"
        for path, change in self._below_prefix(commit):
            modes = change.before[0], change.after[0]
            if not path.startswith(above):
                if modes[0] != modes[1] and path.split("/", 1)[0] in _LEADING:
                    return False
            elif asked is None or path in self._compared(above, asked) or modes[1] not in _REGULAR:
                # What is gone may have been the last file of a folder that was looked for.
                return False
            elif modes[0] not in (0, *_REGULAR):
                return False
            elif is_source(path.rpartition("/")[2]):
                if not search:
                    return False
                mentioning = self._holding(asked.needles)
                if change.before[1] in mentioning or change.after[1] in mentioning:
                    return False
        return True

    def _compared(self, above: str, asked: Questions) -> set[str]:
        """List the files whose content matters."""
        if self._last[0] != (above, asked.blobs):
            names = {f"{above}{name}" for name in VERSION_FILES}
            self._last = ((above, asked.blobs), names | {str(path) for path in asked.blobs})
        return self._last[1]

    def _below_prefix(self, commit: str) -> Iterator[tuple[str, Change]]:
        prefix = self._repository.prefix
        above = "" if prefix == PurePosixPath() else f"{prefix}/"
        for change in self._changes[commit]:
            if change.path.startswith(above):
                yield change.path.removeprefix(above), change

    def _holding(self, needles: tuple[str, ...]) -> set[str]:
        """Find the contents with any of some names, among all Python files that differ."""
        if needles not in self._mentioning:
            blobs = [
                blob
                for changes in self._changes.values()
                for change in changes
                if change.path.endswith(".py")
                for mode, blob in (change.before, change.after)
                if mode in _REGULAR
            ]
            found = self._repository.with_any([needle.encode() for needle in needles], blobs)
            self._mentioning[needles] = found
        return self._mentioning[needles]
