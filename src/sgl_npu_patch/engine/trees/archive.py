"""Read a package from an archive, without unpacking it, and refuse hostile members."""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.directory import find_package, is_source, no_package

_LIMIT = 1 << 30
"""Bytes of Python to take from a tar archive, which is read into memory."""


@dataclass(slots=True, kw_only=True)
class ArchiveTree:
    """Read a package from an archive.

    Attributes:
        content: returns the bytes of a member.
        links: members that stand for another file; they are refused when they would be read.
    """

    label: str
    project: Project
    package: PurePosixPath
    members: Mapping[str, object]
    content: Callable[[str], bytes]
    links: Collection[str] = ()
    revision: str | None = None
    _data: dict[str, bytes] = field(default_factory=dict)

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package; see `SourceTree.copies`."""
        return tuple(
            path for path in find_copies(self.project, self.members) if path != self.package
        )

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        names = self._sources() if among is None else [path.as_posix() for path in among]
        return tuple(sorted(PurePosixPath(name) for name in names if needle in self._read(name)))

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        name = path.as_posix()
        return self._read(name) if name in self.members else None

    def _sources(self) -> Iterator[str]:
        depth = len(self.package.parts)
        above = "" if self.package == PurePosixPath() else f"{self.package}/"
        for name in self.members:
            if name.startswith(above) and is_source(PurePosixPath(name).name):
                *inner, _ = name.split("/")[depth:]
                if not any(part.startswith(".") or part == "__pycache__" for part in inner):
                    yield name

    def _read(self, name: str) -> bytes:
        if name not in self._data:
            if name in self.links:
                raise Refused(
                    f"{self.label}: {name} is a link, which is not followed; unpack the archive "
                    "and give that folder"
                )
            self._data[name] = self.content(name)
        return self._data[name]


def open_archive(path: Path, project: Project) -> ArchiveTree:
    """Find the package in a zip or tar archive of a tree, or in a source distribution.

    Raises:
        Refused: it is none, a hostile one, damaged, or does not hold the package.
    """
    read = _open_zip if path.name.endswith(".zip") else _open_tar
    with readable(path):
        tree = read(path, project)
    folders = {above for name in tree.members for above in PurePosixPath(name).parents}
    files = {PurePosixPath(name) for name in tree.members}
    tops = {name.partition("/")[0] for name in tree.members}
    # A source distribution, or what a git server packs, has one folder named by the version.
    below = [PurePosixPath(), *(PurePosixPath(top) for top in tops if len(tops) == 1)]
    for start in below:
        package = find_package(project, folders.__contains__, files.__contains__, start)
        if package is not None:
            tree.package = package
            return tree
    raise Refused(no_package(project, str(path)))


def check_members(
    archive: str, members: Sequence[zipfile.ZipInfo], kind: str = "wheel", allowed: int = 0
) -> None:
    """Refuse members that lead elsewhere, are no files, or stand for the same file twice.

    Args:
        allowed: a further type of file, as `stat.S_IFMT` gives it.

    Raises:
        Refused: a member is one that no build tool writes.
    """
    special = {
        member.filename
        for member in members
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, allowed)
    }
    # The name as stored: zipfile cuts one at a NUL byte.
    _check_names(archive, kind, [(m.filename, m.orig_filename) for m in members], special)


def find_copies(project: Project, names: Iterable[str]) -> tuple[PurePosixPath, ...]:
    """List the folders in which a copy of the package stands, as packaging leaves in `build`."""
    inside = f"/{project.package}/{project.core}/"
    found = {
        PurePosixPath(name.partition(inside)[0], project.package)
        for name in names
        if inside in name
    }
    return tuple(sorted(found))


def content_of(path: Path, archive: zipfile.ZipFile) -> Callable[[str], bytes]:
    """Return the function that reads a member of a zip archive.

    Raises:
        Refused: (the function) the member is damaged or encrypted.
    """

    def content(name: str) -> bytes:
        with readable(path, name):
            return archive.read(name)

    return content


@contextmanager
def readable(path: Path, name: str = "") -> Iterator[None]:
    """Refuse what cannot be read in the body, by the name of the file or member."""
    what = f"{path}: {name}" if name else f"{path}"
    kind = "wheel" if path.suffix == ".whl" else "archive"
    try:
        yield
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        _lzma_error(),
    ) as error:
        article = "a" if kind == "wheel" else "an"
        raise Refused(f"{what}: is not readable as {article} {kind}: {error}") from error
    except OSError as error:
        raise Refused(f"{what}: cannot be read: {error.strerror or error}") from error


def _lzma_error() -> type[Exception]:
    try:
        from lzma import LZMAError
    except ImportError:  # a Python that was built without it
        return tarfile.TarError
    return LZMAError


def _open_zip(path: Path, project: Project) -> ArchiveTree:
    archive = zipfile.ZipFile(path)
    listed = [member for member in archive.infolist() if not member.is_dir()]
    check_members(path.name, listed, "source archive", stat.S_IFLNK)
    links = {m.filename for m in listed if stat.S_IFMT(m.external_attr >> 16) == stat.S_IFLNK}
    return ArchiveTree(
        label=str(path),
        project=project,
        package=PurePosixPath(),
        members={member.filename: member for member in listed},
        content=content_of(path, archive),
        links=links,
    )


def _open_tar(path: Path, project: Project) -> ArchiveTree:
    """Read all Python files at once: a compressed archive has no other order than its own."""
    data: dict[str, bytes] = {}
    names: list[tuple[str, str]] = []
    links: set[str] = set()
    special: set[str] = set()
    size = 0
    with tarfile.open(path, "r|*", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isdir():
                continue
            names.append((name, member.name))
            if member.issym() or member.islnk():
                links.add(name)
                data[name] = b""
            elif not member.isfile():
                special.add(name)
            elif name.endswith(".py"):
                size += member.size
                if size > _LIMIT:
                    raise Refused(f"{path}: holds more than {_LIMIT >> 20} MB of Python")
                file = archive.extractfile(member)
                assert file is not None
                data[name] = file.read()
        # Where a file is cut between two members, tarfile sees its end, but no end mark.
        if archive.fileobj is not None and archive.fileobj.tell() == archive.offset:
            raise tarfile.ReadError("it ends without an end mark")
    _check_names(path.name, "source archive", names, special)
    return ArchiveTree(
        label=str(path),
        project=project,
        package=PurePosixPath(),
        members=data,
        content=data.__getitem__,
        links=links,
    )


def _check_names(
    archive: str, kind: str, names: Sequence[tuple[str, str]], special: Collection[str]
) -> None:
    counted = Counter(name for name, _ in names)
    folders = {
        parent.as_posix() for name in counted for parent in PurePosixPath(name).parents if name
    }
    for name, stored in names:
        parts = name.split("/")
        escapes = {"", ".", ".."}.intersection(parts) or re.search(r"[\\:\0]", stored)
        if escapes or name in special or counted[name] > 1 or name in folders:
            times = " more than once" if counted[name] > 1 else ""
            raise Refused(
                f"{archive} holds {name!r}{times}, which a {kind} never does;"
                " nothing was taken from it"
            )
