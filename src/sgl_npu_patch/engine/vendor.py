"""Wrap our modules for a tree and recognise them there."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Literal

from sgl_npu_patch import __version__

FOLDER = PurePosixPath("srt/hardware_backend/npu/batch_invariant_ops")
"""Where the modules go, below the package; upstream keeps no `__init__.py` there."""

_HEADER = re.compile(
    r"\A# Written by sgl-npu-patch (?P<version>\S+): do not edit, `sgl-npu-patch apply` "
    r"refreshes it\.\r?\n# sha256 of what follows: (?P<digest>[0-9a-f]{64})\r?\n"
)

State = Literal["missing", "current", "older", "newer", "edited", "foreign"]


@dataclass(frozen=True, slots=True)
class Vendored:
    """Say what stands at a vendored module's path, and which version of ours wrote it."""

    state: State
    version: str = ""


@cache
def render(module: str) -> bytes:
    """Give the bytes to vendor: a header with version and checksum, then the module, LF only."""
    text = body(module)
    return (
        f"# Written by sgl-npu-patch {__version__}: do not edit, `sgl-npu-patch apply` "
        f"refreshes it.\n# sha256 of what follows: {digest(text)}\n{text}"
    ).encode()


def body(module: str) -> str:
    """Give a module's text as it is vendored, without the header."""
    text = files("sgl_npu_patch.npu_ops").joinpath(f"{module}.py").read_text("utf-8")
    return text.replace("\r\n", "\n")


def unmodified(data: bytes) -> str:
    """Give the checksum of a vendored module as it was written; empty if it was edited since."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    header = _HEADER.match(text)
    found = digest(text[header.end() :]) if header else ""
    return found if header and found == header["digest"] else ""


def recognise(module: str, data: bytes | None) -> Vendored:
    """Tell whether a file is ours, of which version, and unmodified.

    Line endings do not count: a checkout may have turned them.
    """
    if data is None:
        return Vendored("missing")
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    header = _HEADER.match(text)
    if header is None:
        return Vendored("foreign")
    version = header["version"]
    if digest(text[header.end() :]) != header["digest"]:
        return Vendored("edited", version)
    if text.encode() == render(module):
        return Vendored("current", version)
    from packaging.version import InvalidVersion, Version

    try:
        newer = Version(version) > Version(__version__)
    except InvalidVersion:
        return Vendored("foreign")
    return Vendored("newer" if newer else "older", version)


def first_edit(module: str, data: bytes) -> str:
    """Give the first line in which an edited file of this version differs from what was written.

    Empty for a file of another version, whose text nobody has any more.
    """
    found = data.decode("utf-8", "replace").replace("\r\n", "\n").splitlines()
    written = render(module).decode().splitlines()
    if found[:1] != written[:1]:
        return ""
    for number, (line, other) in enumerate(zip_longest(found, written), 1):
        if line != other:
            return f"line {number}: " + (line.strip() if line is not None else "missing")
    return "the end of the file"


def digest(text: str) -> str:
    """Give the checksum that stands in the header of a module with this text."""
    return hashlib.sha256(text.encode()).hexdigest()
