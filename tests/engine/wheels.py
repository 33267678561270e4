"""Build small wheels that the whole series can patch, and hostile ones."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from sgl_npu_patch.engine.record import line_of
from tests.engine.package import SOURCES

VERSION = "0.5.12"
SUFFIX = "npu.deterministic"


def files_of(version: str = VERSION, name: str = "sglang") -> dict[str, bytes]:
    """Return the members of a wheel by name, RECORD left out."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: of the text\n"
    return {
        **{f"sglang/{path}": source.encode() for path, source in SOURCES.items()},
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nsglang-x = sglang.version:main\n",
    }


def record_of(files: Mapping[str, bytes], info: str) -> bytes:
    """Return the RECORD of a wheel's files."""
    rows = [line_of(path, data) for path, data in files.items()]
    return "".join([*rows, line_of(f"{info}/RECORD")]).encode()


def build_wheel(
    folder: Path,
    changes: Mapping[str, bytes | None] | None = None,
    *,
    version: str = VERSION,
    name: str = "sglang",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel, some of its members exchanged, added, or left out by None."""
    info = f"{name}-{version}.dist-info"
    files = {**files_of(version, name), **(changes or {})}
    kept = {path: data for path, data in files.items() if data is not None}
    if f"{info}/RECORD" not in files:
        kept[f"{info}/RECORD"] = record_of(kept, info)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in kept.items():
            archive.writestr(path, data)
    return target


def contents_of(wheel: Path) -> dict[str, bytes]:
    """Return a wheel's members by name, in their order."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
