"""Read a package from one git revision: bytes as stored, without a checkout."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.git_contents import Contents
from sgl_npu_patch.engine.trees.git_folders import FOLDER, Entry, Folders, refuse_links
from sgl_npu_patch.engine.trees.git_search import Search


@dataclass(slots=True, kw_only=True)
class GitTree:
    """Read a package from one revision.

    Attributes:
        repository: a folder of the repository that git can be called in.
        root: the id of the revision's root folder.
        prefix: where the folder that the user named stands below the repository's root.
    """

    folders: Folders
    contents: Contents
    search: Search
    repository: Path
    root: str
    prefix: PurePosixPath
    project: Project
    package: PurePosixPath
    label: str
    revision: str | None

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package; see `SourceTree.copies`."""
        if self.package == PurePosixPath():
            return ()
        found = {*map(PurePosixPath, self.project.layouts)} - {PurePosixPath()}
        for above in {PurePosixPath(), self.package.parent}:
            mode, tree = self._find(above / "build") or (0, "")
            if mode == FOLDER:
                names = [name for name in self.folders[tree] if name.startswith("lib")]
                found.update(above / "build" / name / self.project.package for name in names)
        return tuple(path for path in sorted(found - {self.package}) if self._is_copy(path))

    def _is_copy(self, path: PurePosixPath) -> bool:
        with suppress(Refused):  # a link to the package is no copy of it
            return self.has_folder(path / self.project.core)
        return False

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        if among is not None:
            return tuple(path for path in among if needle in (self.read(path) or b""))
        return tuple(PurePosixPath(name) for name in self.names_containing(needle))

    def names_containing(self, needle: bytes) -> list[str]:
        """Search like `containing`, without the cost of making paths of the names."""
        found = self.search.holding(needle, self.package_id(), self.package.as_posix())
        above = "" if self.package == PurePosixPath() else f"{self.package}/"
        return [f"{above}{name}" for name in sorted(found)]

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        blob = self.blob(path)
        return None if blob is None else self.contents[blob]

    def blob(self, path: PurePosixPath) -> str | None:
        """Return the id of a file's content, None if there is no such file.

        Raises:
            Refused: a link, submodule or folder stands there.
        """
        entry = self._find(path)
        if entry is None:
            return None
        refuse_links(self.label, path.as_posix(), entry[0])
        if entry[0] == FOLDER:
            raise Refused(f"{path}: is not a regular file")
        return entry[1]

    def read_ahead(self) -> None:
        """Read what any search reads.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        self.search.search(self.package_id(), self.package.as_posix())

    def package_id(self) -> str:
        """Return the id of the package's folder, which stands for all that is in it."""
        entry = self._find(self.package)
        assert entry is not None
        return entry[1]

    def has_folder(self, path: PurePosixPath) -> bool:
        """Report whether the revision has a folder."""
        return self._mode(path) == FOLDER

    def has_file(self, path: PurePosixPath) -> bool:
        """Report whether the revision has a file."""
        return self._mode(path) not in (None, FOLDER)

    def _mode(self, path: PurePosixPath) -> int | None:
        entry = self._find(path)
        return entry[0] if entry else None

    def _find(self, path: PurePosixPath) -> Entry | None:
        mode, found = FOLDER, self.root
        parts = (*self.prefix.parts, *path.parts)
        for place, part in enumerate(parts):
            if mode != FOLDER:
                refuse_links(self.label, "/".join(parts[:place]), mode)
                return None
            entry = self.folders[found].get(part)
            if entry is None:
                return None
            mode, found = entry
        return mode, found
