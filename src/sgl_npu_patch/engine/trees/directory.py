"""Find a package in a directory, and read its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""Never wait for a named pipe; Python's own `open` costs as much again as the reading."""


class SourceTree(Protocol):
    """Read the files of one package, wherever they are kept.

    Paths are relative to the root that the user named; ``package`` is the package's folder.
    """

    label: str
    package: PurePosixPath
    revision: str | None

    @property
    def project(self) -> Project:
        """Return what is known of the package."""
        ...

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List the folders of other copies of the package, sorted."""
        ...

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """List the package's Python files whose bytes contain a needle, sorted.

        Args:
            among: the files to look at, all if None.

        Raises:
            Refused: a file cannot be read.
        """
        ...

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes, None if there is no such file.

        Raises:
            Refused: the file is there and cannot be read.
        """
        ...


@dataclass(slots=True)
class DirectoryTree:
    """Read a package from a directory; each file is read once."""

    root: Path
    project: Project
    package: PurePosixPath
    label: str = ""
    revision: str | None = None
    _data: dict[str, bytes] = field(default_factory=dict)
    _names: list[str] | None = None

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        if self._names is None:
            self._names = []
            self._scan(str(self.root / self.package), str(self.package), self._names)
            self._names.sort()
        names = self._names if among is None else [path.as_posix() for path in among]
        # Asked for every name of a tree and every needle: a look-up is half of a call.
        data = self._data
        return tuple(
            PurePosixPath(name)
            for name in names
            if needle in (data[name] if name in data else self._read(name))
        )

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        try:
            return self._read(path.as_posix())
        except FileNotFoundError:
            return None

    def metadata(self) -> tuple[PurePosixPath, ...]:
        """List the `*.dist-info` folders beside the package, as far as they are in the tree.

        Raises:
            Refused: the folder cannot be listed.
        """
        if self.package == PurePosixPath():
            return ()
        beside = self.package.parent
        try:
            names = sorted(path.name for path in (self.root / beside).iterdir())
        except OSError as error:
            raise Refused(f"{beside}: cannot be listed: {error.strerror}") from error
        return tuple(beside / name for name in names if name.endswith(".dist-info"))

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package in the tree, which nothing here reads or patches.

        Upstream's packaging leaves them in `build`, and several wheels of forks ship that folder.
        """
        if self.package == PurePosixPath():
            return ()
        found = {*map(PurePosixPath, self.project.layouts)} - {PurePosixPath()}
        for folder in {PurePosixPath(), self.package.parent}:
            built = self.root.joinpath(folder, "build").glob(f"lib*/{self.project.package}")
            found.update(PurePosixPath(path.relative_to(self.root).as_posix()) for path in built)
        return tuple(
            path
            for path in sorted(found - {self.package})
            if self.root.joinpath(path, self.project.core).is_dir()
        )

    def _read(self, name: str) -> bytes:
        data = self._data.get(name)
        if data is None:
            data = self._data[name] = self._load(name)
        return data

    def _load(self, name: str) -> bytes:
        target = f"{self.root}/{name}"
        try:
            descriptor = os.open(target, _READ)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise Refused(f"{name}: is not a regular file")
                return _read_all(descriptor, status.st_size)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            if Path(target).is_symlink():
                raise Refused(f"{name}: is a symbolic link that leads nowhere") from None
            raise FileNotFoundError(target) from None
        except OSError as error:
            raise Refused(f"{name}: cannot be read: {error.strerror}") from error

    def _scan(self, folder: str, name: str, found: list[str]) -> None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # No import reaches a hidden name: editors' locks and backups, caches.
                    if entry.name.startswith("."):
                        continue
                    inner = entry.name if name == "." else f"{name}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            self._scan(entry.path, inner, found)
                    elif entry.name.endswith(".py"):
                        found.append(inner)
        except OSError as error:
            raise Refused(f"{name}: cannot be listed: {error.strerror}") from error


def open_directory(root: Path, project: Project) -> DirectoryTree:
    """Find the package in a folder, or in the package's own.

    Raises:
        Refused: the path cannot be read or holds no such package.
    """
    try:
        if not root.is_dir():
            what = "is not a directory" if root.exists() else "does not exist"
            raise Refused(f"{root}: {what}; give the root of a checkout of {project.name}")
        next(root.iterdir(), None)
        package = find_package(
            project, lambda path: (root / path).is_dir(), lambda path: (root / path).is_file()
        )
        if package is not None:
            return DirectoryTree(root=root, project=project, package=package, label=str(root))
    except OSError as error:
        raise Refused(f"{error.filename or root}: cannot be read: {error.strerror}") from error
    raise Refused(no_package(project, str(root)))


def find_package(
    project: Project,
    has_folder: Callable[[PurePosixPath], bool],
    has_file: Callable[[PurePosixPath], bool],
    below: PurePosixPath = PurePosixPath(),  # noqa: B008  # immutable
) -> PurePosixPath | None:
    """Find the package in one of the project's layouts."""
    for layout in project.layouts:
        package = below / layout
        if has_folder(package / project.core) and has_file(package / "__init__.py"):
            return package
    return None


def no_package(project: Project, label: str) -> str:
    """Return the message of a tree without the package: where it was looked for."""
    looked = ", ".join(str(PurePosixPath(layout, project.core)) for layout in project.layouts)
    return (
        f"{label}: not a tree of {project.name}: looked for the package as {looked} and found "
        f"none; give a repository root, the {project.package} package or the folder that holds it"
    )


def is_source(name: str) -> bool:
    """Report whether a file of that name is searched: no import reaches a hidden one."""
    return name.endswith(".py") and not name.startswith(".")


def full_name(tree: SourceTree) -> str:
    """Return the name of a tree in a message: where it is, and which revision."""
    return f"{tree.label} at {tree.revision[:12]}" if tree.revision else tree.label


def _read_all(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data
