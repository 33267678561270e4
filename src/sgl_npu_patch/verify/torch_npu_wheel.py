"""Read the operator schemas of a real torch_npu without importing it.

torch_npu cannot be imported without Ascend's CANN libraries, but its schemas stand as strings in
`torch_npu/lib/*.so`. They are read from the wheels for aarch64: in those for x86-64, from 2.13 on,
some stand cut into pieces of 16 bytes without their order. What was read out of a downloaded wheel
is kept in `$SGL_NPU_PATCH_CACHE`, or else `sgl-npu-patch` in `$XDG_CACHE_HOME` or `~/.cache`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.fetch import download
from sgl_npu_patch.verify.schema import parse

DISTRIBUTION = "torch_npu"
INSTALLED = "installed"
"""What asks for the copy that this Python would import."""

PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
FORMAT = 3
"""Counts up when more is read out of a wheel, so that what older versions kept is read again."""

_ATB = "torch_npu/lib/libop_plugin_atb.so"
_LIBRARIES = ("torch_npu/lib/libtorch_npu.so", _ATB)
_NPU = "torch_npu/npu/__init__.py"
_HANDLERS = (b"NpuGraphOpHandler", b"register_npu_graph_handler")
_TEXT = re.compile(rb"[\x20-\x7e]{8,}")
_NAME = re.compile(rb"_?npu_[a-z0-9_]+(?:\.[a-z_]+)?")


@dataclass(frozen=True, slots=True)
class TorchNpu:
    """Hold what a torch_npu offers.

    Attributes:
        version: its version, or the path that it was read from where that does not say.
        schemas: the text of each schema by operator, with ``.overload`` if it is not the default.
        graph_handlers: graph handlers can be registered by operator.
        atb: the operators of ``torch.ops.atb``; the others are those of ``torch.ops.npu``.
        unread: what is named like an operator in the libraries and has no schema there: its schema
            was cut into pieces, or it is something else.
    """

    version: str
    schemas: Mapping[str, str]
    graph_handlers: bool
    atb: tuple[str, ...]
    unread: tuple[str, ...]


def read(given: str) -> TorchNpu:
    """Read a torch_npu.

    Args:
        given: a version, which pip downloads once; the path of a wheel; a folder that holds
            ``torch_npu``; or ``installed``. Raises `Refused`.
    """
    path = Path(given)
    if given == INSTALLED:
        return _from_installed()
    if path.is_dir():
        return _from_folder(path, str(path))
    if path.suffix == ".whl":
        return _from_wheel(path)
    try:
        version = Version(given)
    except InvalidVersion:
        raise Refused(
            f"{given!r} names no torch_npu: expected a version such as 2.10.0, the path of a wheel,"
            f" a folder that holds torch_npu, or {INSTALLED!r}"
        ) from None
    return _from_release(version)


def cache_directory() -> Path:
    """Give the folder for what was read, which may not exist yet."""
    if chosen := os.environ.get("SGL_NPU_PATCH_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sgl-npu-patch"


def _from_release(version: Version) -> TorchNpu:
    kept = cache_directory() / f"torch_npu-{version}-operators-{FORMAT}.json"
    if kept.is_file():
        content = json.loads(kept.read_text(encoding="utf-8"))
        lists = {name: tuple(content[name]) for name in ("atb", "unread")}
        return TorchNpu(**{**content, **lists})
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as folder:
        found = _from_wheel(download(DISTRIBUTION, version, Path(folder), PLATFORMS))
    content = {name: getattr(found, name) for name in TorchNpu.__slots__}
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
    Path(file.name).replace(kept)
    return found


def _from_wheel(wheel: Path) -> TorchNpu:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            return _read(
                _version_in(wheel.name) or str(wheel),
                {name: archive.read(name) for name in _LIBRARIES if name in names},
                archive.read(_NPU) if _NPU in names else b"",
            )
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"cannot read {wheel}: {error}") from error


def _from_folder(folder: Path, name: str) -> TorchNpu:
    base = folder.parent if folder.name == DISTRIBUTION else folder
    metadata_folder = next(base.glob(f"{DISTRIBUTION}-*.dist-info"), None)
    version = _version_in(metadata_folder.name) if metadata_folder else name
    libraries = {name: base / name for name in _LIBRARIES}
    npu = base / _NPU
    try:
        return _read(
            version,
            {name: path.read_bytes() for name, path in libraries.items() if path.is_file()},
            npu.read_bytes() if npu.is_file() else b"",
        )
    except OSError as error:
        raise Refused(f"cannot read {folder}: {error}") from error


def _from_installed() -> TorchNpu:
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise Refused("torch_npu is not installed in this Python") from None
    return _from_folder(Path(str(found.locate_file(""))), found.version)


def _version_in(name: str) -> str:
    parts = name.removesuffix(".dist-info").split("-")
    return parts[1] if len(parts) > 1 else ""


def _read(version: str, libraries: Mapping[str, bytes], npu: bytes) -> TorchNpu:
    schemas: dict[str, str] = {}
    named: set[str] = set()
    atb: set[str] = set()
    for name, library in libraries.items():
        for match in _TEXT.finditer(library):
            text = match.group()
            if _NAME.fullmatch(text):
                named.add(text.decode("ascii"))
            elif b"->" in text and (schema := parse(text.decode("ascii"))):
                schemas[schema.text.partition("(")[0]] = schema.text
                if name == _ATB:
                    atb.add(schema.name)
    if not schemas:
        raise Refused(f"{version} holds no operator schemas: it is not a build of torch_npu")
    handlers = all(name in npu for name in _HANDLERS)
    unread = tuple(sorted(named - set(schemas)))
    return TorchNpu(version, dict(sorted(schemas.items())), handlers, tuple(sorted(atb)), unread)
