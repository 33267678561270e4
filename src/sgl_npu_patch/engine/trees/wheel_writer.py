"""Write a wheel anew with a change set in it."""

from __future__ import annotations

import csv
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from packaging.version import Version

from sgl_npu_patch.engine.commit import umask
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.record import digest_of, line_of
from sgl_npu_patch.engine.trees.wheel import VERSION_LINE, WheelTree

if TYPE_CHECKING:
    from sgl_npu_patch.engine.model import ChangeSet

_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip archive can hold: the result must not depend on the day."""
_LEVEL = 6
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


def target_of(tree: WheelTree, out: Path) -> Path:
    """Return where the patched wheel goes: into a folder, or to a path of the right name.

    Raises:
        Refused: there is something at that place, or the name is another one.
    """
    _, _, *tags = tree.path.name.split("-")
    version = new_version(tree.version, tree.project.wheel_suffix)
    name = "-".join([tree.distribution, str(version), *tags])
    named = out.suffix == ".whl" and not out.is_dir()
    target = out if named else out / name
    if named and out.name != name:
        raise Refused(f"{out}: installers take the version from the name, which must be {name}")
    if os.path.lexists(target):
        raise Refused(f"{target}: exists already and is not overwritten; remove it first")
    if not named and out.exists() and not out.is_dir():
        raise Refused(f"{out}: is neither a folder nor named as a wheel is")
    return target


def new_version(version: Version, local: str) -> Version:
    """Add a local version suffix, once; an existing local part is kept in front of it."""
    public, _, present = str(version).partition("+")
    if present == local or present.endswith(f".{local}"):
        return version
    return Version(f"{public}+{present}.{local}" if present else f"{public}+{local}")


def write_wheel(tree: WheelTree, changes: ChangeSet, target: Path) -> list[str]:
    """Write the wheel with a change set in it; the same input gives the same bytes.

    Signatures are dropped, for they would not hold any more, and so are compiled forms of changed
    files.

    Returns:
        The names of what was dropped.

    Raises:
        Refused: a member differs from RECORD, or the target cannot be written.
    """
    version = new_version(tree.version, tree.project.wheel_suffix)
    after = {change.path.as_posix(): change.after for change in changes.changes}
    dropped = [name for name in tree.members if _is_dropped(tree, name, after)]
    names = sorted({*tree.members, *after} - {*dropped, f"{tree.info}/RECORD"})
    # Metadata last, as the format recommends: tools find it without reading the whole archive.
    names.sort(key=lambda name: name.startswith(f"{tree.info}/"))

    contents = _contents(tree, names, after, version)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
        )
        try:
            with os.fdopen(descriptor, "w+b") as file:
                _pack(file, contents, _renamed(tree, f"{tree.info}/RECORD", version))
                _check_packed(file, after)
            Path(scratch).chmod(0o666 & ~umask())
            _publish(Path(scratch), target)
        finally:
            Path(scratch).unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{target}: cannot be written: {error.strerror}") from error
    return dropped


def _contents(
    tree: WheelTree, names: Iterable[str], after: Mapping[str, bytes], version: Version
) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    listed = _hashes(tree)
    for name in names:
        original = tree.members.get(name)
        content = b"" if original is None else tree.content(name)
        if original is not None:
            _check_hash(tree, name, content, listed)
        content = after.get(name, content)
        if name == f"{tree.info}/METADATA":
            content = _with_version(content, version)
        yield _entry(_renamed(tree, name, version), original), content


def _pack(file: IO[bytes], contents: Iterable[tuple[zipfile.ZipInfo, bytes]], record: str) -> None:
    rows = []
    with zipfile.ZipFile(file, "w") as archive:
        for entry, content in contents:
            archive.writestr(entry, content, compresslevel=_LEVEL)
            rows.append(line_of(entry.filename, content))
        data = "".join([*rows, line_of(record)]).encode("utf-8", "surrogateescape")
        archive.writestr(_entry(record, None), data, compresslevel=_LEVEL)


def _check_packed(file: IO[bytes], after: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(file) as archive:
        damaged = [name for name, content in after.items() if archive.read(name) != content]
        if damaged or archive.testzip() is not None:
            raise Refused("the new wheel reads back differently; nothing was written")


def _publish(scratch: Path, target: Path) -> None:
    try:
        # Unlike a rename, this fails if somebody else wrote the target meanwhile.
        target.hardlink_to(scratch)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        if target.exists():
            raise
        scratch.rename(target)


def _with_version(metadata: bytes, version: Version) -> bytes:
    # A description may have a line that looks the same, but only after the header.
    return VERSION_LINE.sub(f"Version: {version}".encode(), metadata, count=1)


def _is_dropped(tree: WheelTree, name: str, after: Iterable[str]) -> bool:
    if name in {f"{tree.info}/{signature}" for signature in _SIGNATURES}:
        return True
    if not name.endswith(".pyc"):
        return False
    path = PurePosixPath(name)
    folder = path.parent.parent if path.parent.name == "__pycache__" else path.parent
    return (folder / f"{path.name.partition('.')[0]}.py").as_posix() in after


def _renamed(tree: WheelTree, name: str, version: Version) -> str:
    top, slash, rest = name.partition("/")
    stem = tree.info.removesuffix(".dist-info")
    for kind in (".dist-info", ".data"):
        if slash and top == f"{stem}{kind}":
            return f"{tree.distribution}-{version}{kind}/{rest}"
    return name


def _entry(name: str, original: zipfile.ZipInfo | None) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    runs = original is not None and original.external_attr >> 16 & 0o111
    entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
    entry.create_system = 3
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _hashes(tree: WheelTree) -> dict[str, str]:
    text = tree.content(f"{tree.info}/RECORD").decode("utf-8", "surrogateescape")
    rows = [next(csv.reader([line]), []) for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) > 1}


def _check_hash(tree: WheelTree, name: str, content: bytes, listed: dict[str, str]) -> None:
    """Compare with RECORD: a new one must not bless what was damaged or slipped in."""
    expected = listed.get(name, "").rstrip("=")
    algorithm = expected.partition("=")[0]
    known = algorithm in ("sha256", "sha384", "sha512")
    if known and digest_of(content, algorithm) != expected:
        raise Refused(f"{tree.path}: {name} is not what RECORD says; nothing was written")
