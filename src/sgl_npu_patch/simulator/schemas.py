"""Read the operator schemas of a real torch_npu out of its wheel.

torch_npu cannot be imported without Ascend's CANN libraries, but its schemas stand as strings in
`torch_npu/lib/*.so`. A wheel is downloaded once with pip; what was read is kept in
`$SGL_NPU_PATCH_CACHE` or `~/.cache/sgl-npu-patch`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from sgl_npu_patch.simulator.device import NPU, cpu

DEFAULT = "2.10.0"
"""Offers graph handlers; 2.8.0.post2 is one that does not."""

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")
_SCHEMA = re.compile(
    rb"[a-z_][a-z0-9_]*(?:\.[A-Za-z_]+)?"
    rb"\([A-Za-z][^\x00-\x1f\x7f-\xff]*\) -> [A-Za-z(][^\x00-\x1f\x7f-\xff]*"
)
_HANDLERS = "graph handlers"


def of(version: str) -> dict[str, str]:
    """Return the schemas of a torch_npu version by operator name with overload."""
    return {name: text for name, text in _read(version).items() if name != _HANDLERS}


def has_graph_handlers(version: str) -> bool:
    """Return whether that torch_npu lets graph handlers be registered by operator."""
    return _HANDLERS in _read(version)


def on_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with the CPU tensors behind npu tensors."""
    return {
        name: pytree.tree_map_only(
            torch.Tensor, lambda t: cpu(t) if t.device.type == NPU else t, given
        )
        for name, given in arguments.items()
    }


@cache
def _read(version: str) -> dict[str, str]:
    kept = _cache() / f"torch_npu-{version}-schemas.json"
    if not kept.is_file():
        found = _from_wheel(version)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as file:
            json.dump(found, file, indent=1, sort_keys=True)
        Path(file.name).replace(kept)
    schemas: dict[str, str] = json.loads(kept.read_text())
    return schemas


def _cache() -> Path:
    chosen = os.environ.get("SGL_NPU_PATCH_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sgl-npu-patch"


def _from_wheel(version: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.11", f"--dest={folder}"]
        command += [f"--platform={platform}" for platform in _PLATFORMS]
        subprocess.run([*command, f"torch_npu=={version}"], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            found: dict[str, str] = {}
            for name in names:
                if re.fullmatch(r"torch_npu/lib/lib(torch_npu|op_plugin_atb)\.so", name):
                    found.update(_schemas(archive.read(name)))
    if any("/_npugraph_handlers/" in name for name in names):
        found[_HANDLERS] = "yes"
    return found


def _schemas(library: bytes) -> dict[str, str]:
    texts = [match.decode("ascii") for match in _SCHEMA.findall(library)]
    return {text.partition("(")[0]: text for text in texts if _parses(text)}


def _parses(text: str) -> bool:
    """Leave out what only looks like a schema: C++ signatures and messages."""
    try:
        torch._C.parse_schema(text)
    except RuntimeError:
        return False
    return True
