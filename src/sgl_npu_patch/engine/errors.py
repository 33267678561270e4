"""Define the errors that end a run; the command line maps each type to an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """Name one place in a tree.

    ``path`` is relative to the root that the user named, ``line`` counts from 1 in the tree as
    it was read and is 0 where the whole file is meant.
    """

    path: PurePosixPath
    line: int
    symbol: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place} {self.symbol}".rstrip()


class Refused(Exception):
    """Refuse a tree or a target that cannot be read, written or understood (exit code 4)."""


class Unparsable(Refused):
    """Refuse one file that is no Python; ``line`` is 0 where the whole file is meant."""

    def __init__(self, path: PurePosixPath, reason: str, line: int = 0) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class TooOld(Refused):
    """Refuse a tree that is too old to be patched, by nothing but its content."""

    def __init__(self, tree: str, reason: str) -> None:
        super().__init__(f"{tree}: {reason}")
        self.reason = reason


class UsageError(Exception):
    """Reject a combination of options (exit code 2)."""


class Conflicting(Exception):
    """Stop before writing a plan in which a seam is in conflict (exit code 3)."""

    def __init__(self, seams: tuple[str, ...]) -> None:
        super().__init__(f"in conflict: {', '.join(seams)}; nothing was changed")
        self.seams = seams


class Interrupted(Exception):
    """Unwind after a signal, once nothing half written is left (exit code 128 + signal)."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}; no file is half written")
        self.signum = signum


class AnchorError(Exception):
    """Report that what a seam needs is gone or ambiguous; the engine makes a conflict of it.

    Args:
        sought: the symbol or statement that was looked for.
        expected: what its shape should have been, how often.
        found: what is there instead.
        where: the places that were looked at or that are in the way.
        nearest: the closest candidate and why it was not taken; empty if there is none.
        action: the next step for the reader.
    """

    def __init__(
        self,
        *,
        sought: str,
        expected: str,
        found: str,
        where: tuple[Site, ...] = (),
        nearest: str = "",
        action: str = "",
    ) -> None:
        super().__init__(f"{sought}: expected {expected}, found {found}")
        self.sought = sought
        self.expected = expected
        self.found = found
        self.where = where
        self.nearest = nearest
        self.action = action


class Located:
    """Add a place to an anchor error that is raised inside and names none."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AnchorError) and not error.where:
            error.where = (self.site,)
