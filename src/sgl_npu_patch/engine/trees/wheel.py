"""Read a package from a wheel."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.archive import ArchiveTree, check_members, content_of, readable

VERSION_LINE = re.compile(rb"^Version:[ \t]*([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
"""The line of METADATA that states the version."""


@dataclass(slots=True, kw_only=True)
class WheelTree(ArchiveTree):
    """Read a package from a wheel.

    Attributes:
        distribution: the name as the wheel spells it.
        info: its `.dist-info` folder.
    """

    path: Path
    archive: zipfile.ZipFile
    distribution: str
    version: Version
    info: str
    members: Mapping[str, zipfile.ZipInfo]


def open_wheel(path: Path, project: Project) -> WheelTree:
    """Open a wheel that holds the package and whose metadata agrees with its name.

    Raises:
        Refused: it is no wheel, a hostile one, damaged, or does not hold the package.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise Refused(f"{path}: is not named as a wheel is: {error}") from error
    with readable(path):
        archive = zipfile.ZipFile(path)
    listed = [member for member in archive.infolist() if not member.is_dir()]
    check_members(path.name, listed)
    members = {member.filename: member for member in listed}
    infos = {top for top, _, _ in (n.partition("/") for n in members) if top.endswith(".dist-info")}
    if len(infos) != 1:
        found = ", ".join(sorted(infos)) or "none"
        raise Refused(f"{path}: holds {found} where a wheel has one .dist-info folder")
    info = infos.pop()
    spelled, _, rest = info.removesuffix(".dist-info").rpartition("-")
    missing = [n for n in ("METADATA", "WHEEL", "RECORD") if f"{info}/{n}" not in members]
    if missing:
        raise Refused(f"{path}: {info} has no {', '.join(missing)}")
    tree = WheelTree(
        label=str(path),
        project=project,
        package=PurePosixPath(project.package),
        members=members,
        content=content_of(path, archive),
        path=path,
        archive=archive,
        distribution=spelled,
        version=version,
        info=info,
    )
    stated = VERSION_LINE.search(_header(tree.content(f"{info}/METADATA")))
    given = (rest, stated[1].decode("ascii", "replace").strip() if stated else "")
    if canonicalize_name(spelled) != name or not all(_same(each, version) for each in given):
        raise Refused(f"{path}: the name, {info} and the version in METADATA do not agree")
    core = f"{tree.package}/{project.core}/"
    if f"{tree.package}/__init__.py" not in members or not any(n.startswith(core) for n in members):
        raise Refused(f"{path}: holds no package `{tree.package}`: no wheel of {project.name}")
    return tree


def _same(text: str, version: Version) -> bool:
    with suppress(InvalidVersion):
        return Version(text) == version
    return False


def _header(metadata: bytes) -> bytes:
    return re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[0]
