"""Hold what a seam was judged as, without importing what judges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sgl_npu_patch.engine.errors import Site

Status = Literal["applied", "pending", "already", "upstream", "not-needed", "withheld", "conflict"]
SETTLED: frozenset[Status] = frozenset({"already", "upstream", "not-needed", "withheld"})
"""What a seam may be judged as once its change is in the tree."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Show a conflict: what was sought and expected, what was found and where, what to do."""

    sought: str
    expected: str
    found: str
    where: tuple[Site, ...]
    nearest: str
    action: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Give one seam's status on one tree."""

    seam: str
    status: Status
    sites: tuple[Site, ...] = ()
    reason: str = ""
    gaps: tuple[str, ...] = ()
    outdated: bool = False
    evidence: Evidence | None = None
