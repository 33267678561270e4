"""Wrap the vendored modules of a project for a tree, and recognise them there."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Literal

from sgl_npu_patch._version import __version__
from sgl_npu_patch.engine.project import Project

State = Literal["missing", "current", "older", "newer", "edited", "foreign"]


@dataclass(frozen=True, slots=True)
class Vendored:
    """Describe what stands at a vendored module's path, and which version of ours wrote it."""

    state: State
    version: str = ""


@cache
def render(project: Project, module: str) -> bytes:
    """Return the bytes to vendor: a header with version and checksum, then the module, LF only."""
    text = body(project, module)
    header = project.header.format(version=__version__)
    return f"{header}\n# sha256 of what follows: {digest(text)}\n{text}".encode()


def body(project: Project, module: str) -> str:
    """Return a module's text as it is vendored, without the header."""
    return _lf(files(project.modules).joinpath(f"{module}.py").read_bytes())


def unmodified(project: Project, data: bytes) -> str:
    """Return the checksum of a vendored module as it was written; empty if it was edited since."""
    text = _lf(data)
    header = _header(project).match(text)
    found = digest(text[header.end() :]) if header else ""
    return found if header and found == header["digest"] else ""


def recognise(project: Project, module: str, data: bytes | None) -> Vendored:
    """Find out whether a file is ours, of which version, and unmodified.

    Line endings do not count: a checkout may have turned them.
    """
    if data is None:
        return Vendored("missing")
    text = _lf(data)
    header = _header(project).match(text)
    if header is None:
        return Vendored("foreign")
    version = header["version"]
    if digest(text[header.end() :]) != header["digest"]:
        return Vendored("edited", version)
    if text.encode() == render(project, module):
        return Vendored("current", version)
    from packaging.version import InvalidVersion, Version

    try:
        newer = Version(version) > Version(__version__)
    except InvalidVersion:
        return Vendored("foreign")
    return Vendored("newer" if newer else "older", version)


def first_edit(project: Project, module: str, data: bytes) -> str:
    """Describe the first line in which an edited file of this version differs from what we wrote.

    Empty for a file of another version, whose text nobody has any more.
    """
    found = _lf(data).splitlines()
    written = render(project, module).decode().splitlines()
    if found[:1] != written[:1]:
        return ""
    for number, (line, other) in enumerate(zip_longest(found, written), 1):
        if line != other:
            return f"line {number}: " + (line.strip() if line is not None else "missing")
    return "the end of the file"


def digest(text: str) -> str:
    """Return the checksum that stands in the header of a module with this text."""
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _header(project: Project) -> re.Pattern[str]:
    before, after = map(re.escape, project.header.split("{version}"))
    return re.compile(
        rf"\A{before}(?P<version>\S+){after}\n"
        r"# sha256 of what follows: (?P<digest>[0-9a-f]{64})\n"
    )


def _lf(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
