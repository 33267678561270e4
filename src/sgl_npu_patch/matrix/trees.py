"""Refer to the trees of a run, before they are opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, slots=True)
class TreeRef:
    """A revision of the repository ``place``, a release of the project ``place``, or a folder.

    Attributes:
        name: what the user calls it.
        revision: a commit's id, or a release's version.
        before: the commit that stands before this one in a range.
    """

    name: str
    kind: Literal["revision", "release", "folder"]
    place: str
    revision: str = ""
    before: str = field(default="", compare=False)


def by_version(name: str) -> tuple[int, Version, str]:
    """Return the key that sorts names: versions first, in their order, then the others."""
    try:
        return 0, Version(name.rpartition("/")[2].rpartition("==")[2]), name
    except InvalidVersion:
        return 1, Version("0"), name
