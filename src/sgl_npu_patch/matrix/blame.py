"""Find the commits that made what a run found new."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository
from sgl_npu_patch.matrix.bisect import bisect
from sgl_npu_patch.matrix.judge import Judge


def blame(
    judge: Judge,
    place: str,
    changes: Sequence[dict[str, Any]],
    good: Sequence[tuple[str, str, str]],
) -> None:
    """Add to each new conflict of a revision the commit that made it, where that can be found.

    Args:
        changes: what differs from the baseline, each with the ``revision`` that was judged.
        good: seams with a status and a revision at which they had it.
    """
    repository = judge.repository(place)
    for change in changes:
        if change["after"] != "conflict" or not change["revision"]:
            continue
        since = {rev for seam, fact, rev in good if seam == change["seam"] and fact != "conflict"}
        nearest = _nearest(repository, since, change["revision"])
        with suppress(Refused, UsageError):
            if nearest:
                found = bisect(judge, place, nearest, change["revision"], change["seam"])
                made = [each for each in found.changes if each["after"] == "conflict"]
                for key in ("commit", "date", "subject", "diff") if made else ():
                    change[key] = made[-1][key]


def _nearest(repository: Repository, candidates: Iterable[str], bad: str) -> str:
    """Choose the revision after which the fewest commits lead to another one; none if none does."""
    counted = []
    for candidate in sorted(candidates):
        # The repository may not have any more what a baseline was made from.
        with suppress(Refused):
            both = ["--left-right", "--count", "--end-of-options"]
            done = repository.git(["rev-list", *both], f"{candidate}...{bad}")
            beside, after = map(int, done.stdout.split())
            if not beside and after:
                counted.append((after, candidate))
    return min(counted)[1] if counted else ""
