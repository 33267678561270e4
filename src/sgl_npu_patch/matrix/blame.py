"""Find the commits that made what a run found new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository
from sgl_npu_patch.matrix.baseline import Entry, statuses_of
from sgl_npu_patch.matrix.bisect import bisect
from sgl_npu_patch.matrix.content import Options
from sgl_npu_patch.matrix.evaluate import Evaluator
from sgl_npu_patch.matrix.repositories import Repositories


def blame(
    repositories: Repositories,
    place: str,
    changes: Sequence[dict[str, Any]],
    expected: Mapping[str, Entry],
    results: Sequence[Mapping[str, Any]],
    *,
    cache: bool,
) -> None:
    """Add to each new conflict of a revision the commit that made it, where that can be found.

    Args:
        place: the repository that the revisions are of.
        changes: what differs from the baseline, each with the ``revision`` that was evaluated.
        expected: the baseline.
        results: what the run found; this and the baseline say where a seam was in no conflict.
    """
    repository = repositories[place]
    evaluator = Evaluator(Options(cache=cache), repositories)
    for change in changes:
        if change["after"] != "conflict" or not change["revision"]:
            continue
        good = set(_without_conflict(change["seam"], expected, results))
        nearest = _nearest(repository, good, change["revision"])
        with suppress(Refused, UsageError):
            if nearest:
                found = bisect(evaluator, place, nearest, change["revision"], change["seam"])
                made = [each for each in found.changes if each["after"] == "conflict"]
                for key in ("commit", "date", "subject", "diff") if made else ():
                    change[key] = made[-1][key]


def _without_conflict(
    seam: str, expected: Mapping[str, Entry], results: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """List the revisions at which a seam is known to be in no conflict."""
    known = [(entry.statuses, entry.revision) for entry in expected.values()]
    known += [(statuses_of(each), each["tree"]["revision"]) for each in results]
    for statuses, revision in known:
        if revision and statuses.get(seam, "conflict") != "conflict":
            yield revision


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
