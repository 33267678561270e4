"""Lay out a published SGLang release as a tree.

The download is pip's, so that the user's own pip configuration (index, proxy, certificates) holds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.archive import check_members, find_copies

if TYPE_CHECKING:
    from collections.abc import Iterable

DISTRIBUTION = "sglang"
PACKAGE = "sglang"

# From 0.5.11 on the wheels carry compiled helpers and are tagged for one platform. Only sources are
# wanted, and they are the same in each, so pip is asked for fixed tags whatever runs here. It does
# not widen a `manylinux_x_y` tag to the older ones by itself.
PYTHON_TAG = "3.11"
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)),
    *(f"manylinux_2_{minor}_aarch64" for minor in range(39, 16, -1)),
    "manylinux2014_x86_64",
    "manylinux2014_aarch64",
)

_WHEELS = ("--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_TAG}")

# As git decides what is text: no NUL byte among the first bytes.
SNIFFED_BYTES = 8000

NEAREST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What was laid out.

    Attributes:
        left_out: how many compiled files of the wheel were not.
        copies: folders of the wheel with the package once more, which were not either.
    """

    directory: Path
    name: str
    version: str
    wheel: str
    files: int
    left_out: int
    copies: tuple[PurePosixPath, ...] = ()

    def __str__(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        left_out = f", {self.left_out} compiled left out" if self.left_out else ""
        return f"{self.name} {self.version} in {self.directory}: {files}{left_out}"


def fetch(release: str, directory: Path) -> FetchResult:
    """Lay out the sources of `release` in `directory`, all or nothing.

    The directory gets the package folder and the wheel's metadata, as in site-packages.

    Args:
        release: a version, or `NAME==VERSION` for a fork published under another name.
        directory: is missing, or empty.

    Raises:
        Refused: there is no such release, or it cannot be laid out there.
    """
    name, version = parse_release(release)
    try:
        target = _free_directory(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename within one file system.
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            wheel = download(name, version, scratch / "wheel")
            tree = scratch / "tree"
            tree.mkdir()
            files, left_out, copies = _unpack(wheel, tree)
            _move_into_place(tree, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise Refused(f"cannot write {name} {version} to {directory}: {error}") from error
    return FetchResult(directory, name, str(version), wheel.name, files, left_out, copies)


def parse_release(release: str) -> tuple[str, Version]:
    """Return the name and the version of `VERSION` or `NAME==VERSION`.

    Raises:
        Refused: it is anything else, such as an option of pip.
    """
    try:
        return DISTRIBUTION, Version(release)
    except InvalidVersion:
        pass
    with suppress(InvalidRequirement, InvalidVersion):
        requirement = Requirement(release)
        pins = list(requirement.specifier)
        plain = not (requirement.extras or requirement.url or requirement.marker)
        if plain and len(pins) == 1 and pins[0].operator == "==":
            return requirement.name, Version(pins[0].version)
    raise Refused(
        f"{release!r} names no release: expected a version such as 0.5.12.post1, or NAME==VERSION"
        " for a fork that is published under another name"
    )


def _free_directory(directory: Path) -> Path:
    target = Path(os.path.realpath(directory))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        what = "is not empty" if target.is_dir() else "is not a directory"
        raise Refused(
            f"{directory} {what}: a release is laid out only in a new or empty directory;"
            " name another one, or remove it first"
        )
    return target


def cached_release(name: str, version: Version, releases: Path) -> Path:
    """Return the folder of a release below `releases`, fetched if it is not there.

    Any number of processes may ask for the same one at once: the first that is done lays it out.

    Raises:
        Refused: it cannot be fetched, or something else stands there.
    """
    plain = name == DISTRIBUTION
    target = releases / f"{name}-{version}"
    if not target.is_dir():
        try:
            releases.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=releases) as scratch:
                tree = Path(scratch, target.name)
                fetch(str(version) if plain else f"{name}=={version}", tree)
                with suppress(FileExistsError, OSError):
                    tree.rename(target)
        except OSError as error:
            raise Refused(f"{releases}: cannot be written: {error.strerror}") from error
        if not target.is_dir():
            raise Refused(f"{target}: cannot be laid out: something else stands there")
    return target


def list_versions(name: str) -> list[Version]:
    """List the versions of a distribution that pip finds wheels of, oldest first.

    Raises:
        Refused: it finds none.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "--pre", "--no-input"]
    command += ["--disable-pip-version-check", *_WHEELS]
    command += [*(f"--platform={platform}" for platform in PLATFORMS), "--", name]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    listed = re.search(r"^Available versions: (.*)$", result.stdout, re.MULTILINE)
    if result.returncode or not listed:
        said = [line.strip() for line in result.stderr.splitlines() if "ERROR" in line][-1:]
        raise Refused(
            f"pip lists no versions of {name}; check the name, the network and pip's own settings "
            f"(`python -m pip config list`). It said: {said[0] if said else 'nothing'}"
        )
    return _versions(listed[1].split(","))


def download(
    name: str, version: Version, into: Path, platforms: tuple[str, ...] = PLATFORMS
) -> Path:
    """Download a release's wheel for one of the platforms into a folder, by pip.

    Raises:
        Refused: pip fails, or finds none.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", *_WHEELS]
    command += [f"--platform={platform}" for platform in platforms]
    command += [f"--dest={into}", "--", f"{name}=={version}"]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0:
        raise Refused(_why_pip_failed(name, version, result.stdout + result.stderr))
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        found = ", ".join(wheel.name for wheel in wheels) or "nothing"
        raise Refused(f"pip was asked for one wheel of {name} {version} and downloaded {found}")
    return wheels[0]


def _why_pip_failed(name: str, version: Version, output: str) -> str:
    wanted = f"{name} {version}"
    if "No module named pip" in output:
        return (
            f"cannot fetch {wanted}: this Python ({sys.executable}) has no pip;"
            " install it with `python -m ensurepip`, or run from an environment that has it"
        )
    listed = re.search(r"\(from versions: ([^)]*)\)", output)
    known = _versions(listed[1].split(",")) if listed else []
    if known:
        place = bisect(known, version)
        nearest = known[max(place - NEAREST_SHOWN, 0) : place + NEAREST_SHOWN]
        names = ", ".join(str(version) for version in nearest)
        return f"pip finds no wheel of {wanted}; the nearest of {len(known)} releases are: {names}"
    said = [line.strip() for line in output.splitlines() if line.strip()][-2:]
    return (
        f"pip could not download {wanted}; check the name, the network and pip's own settings"
        " (`python -m pip config list`). It said: " + " / ".join(said or ["nothing"])
    )


def _versions(texts: Iterable[str]) -> list[Version]:
    versions = []
    for text in texts:
        with suppress(InvalidVersion):
            versions.append(Version(text))
    return sorted(versions)


def _unpack(wheel: Path, into: Path) -> tuple[int, int, tuple[PurePosixPath, ...]]:
    """Write the sources of the wheel.

    Returns:
        How many files were written, how many left out, and the other copies of the package.
    """
    files = left_out = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            check_members(wheel.name, members)
            for member in members:
                path = PurePosixPath(member.filename)
                if not _belongs(path):
                    continue
                with archive.open(member) as source:
                    head = source.read(SNIFFED_BYTES)
                    if b"\0" in head and path.suffix != ".py":
                        left_out += 1
                        continue
                    target = into / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(head + source.read())
                    files += 1
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise Refused(f"{wheel.name} is not a readable wheel: {error}") from error
    if not (into / PACKAGE / "__init__.py").is_file():
        raise Refused(f"{wheel.name} holds no package `{PACKAGE}`: it is not a release of SGLang")
    return files, left_out, find_copies(PROJECT, (member.filename for member in members))


def _belongs(path: PurePosixPath) -> bool:
    top = path.parts[0]
    # RECORD lists the files that are left out, too, and would be wrong here.
    return top == PACKAGE or (top.endswith(".dist-info") and path.name != "RECORD")


def _move_into_place(tree: Path, target: Path) -> None:
    if not target.exists():
        tree.rename(target)
        return
    # An empty directory is filled, not replaced: it may be somebody's working directory.
    moved: list[Path] = []
    try:
        for entry in tree.iterdir():
            moved.append(target / entry.name)
            entry.rename(moved[-1])
    except BaseException:
        for entry in moved:
            shutil.rmtree(entry, ignore_errors=True)
        raise
