"""Hold what a run finds out about a tree: the plain data that reports print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from sgl_npu_patch.engine.errors import Site

Status = Literal["applied", "pending", "already", "upstream", "not-needed", "withheld", "conflict"]
Verdict = Literal["pass", "fail", "not-applicable"]
CheckKind = Literal["static", "behaviour", "layers", "server", "contract", "measured"]
SETTLED: frozenset[Status] = frozenset({"already", "upstream", "not-needed", "withheld"})
"""The statuses that a seam may have once its change is in the tree."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Explain a conflict: what was sought and expected, what was found and where, what to do."""

    sought: str
    expected: str
    found: str
    where: tuple[Site, ...]
    nearest: str
    action: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """State one seam's status on one tree."""

    seam: str
    status: Status
    sites: tuple[Site, ...] = ()
    reason: str = ""
    gaps: tuple[str, ...] = ()
    outdated: bool = False
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class FileChange:
    """Pair a file's bytes as read with those to write; ``before`` is None for a new file."""

    path: PurePosixPath
    before: bytes | None
    after: bytes


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """List the files to write, sorted by path, each one different from what was read."""

    changes: tuple[FileChange, ...]

    @property
    def changed(self) -> tuple[PurePosixPath, ...]:
        """List the existing files that get other bytes."""
        return tuple(change.path for change in self.changes if change.before is not None)

    @property
    def added(self) -> tuple[PurePosixPath, ...]:
        """List the files that are new."""
        return tuple(change.path for change in self.changes if change.before is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """State one check's verdict on one tree.

    Attributes:
        id: the check's name, beginning with its seam: ``sampler.neighbours_change_nothing``.
        meaning: what the check says of a tree that passes, in one line.
        message: the meaning again where it passes, why it says nothing where it is not applicable,
            what is wrong where it fails.
        site: where to look in the tree.
        expected, found: the two sides of a failure.
        code: the shortest code that shows the failure.
        action: what to do about it.
        gap: the gap of adapted releases that a failure is, by the name that `status` gives it.
        measured: the chip on which a kit has measured it too.
        lost: the process that ran it ended too early, which may be the machine's doing.
    """

    id: str
    seam: str
    kind: CheckKind
    verdict: Verdict
    meaning: str
    message: str
    site: Site | None = None
    expected: str = ""
    found: str = ""
    code: str = ""
    action: str = ""
    gap: str = ""
    measured: str = ""
    lost: bool = False
