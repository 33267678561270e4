"""Evaluate all trees of a run, each content once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.store import Store, user_folder
from sgl_npu_patch.matrix.evaluate import ANSWERS, Evaluation, Evaluator, load_ahead
from sgl_npu_patch.matrix.range_diff import RangeDiff
from sgl_npu_patch.matrix.trees import TreeRef

Progress = Callable[[int], None]
_AT_ONCE = 500
"""How many revisions to look up at once; what is read of each is kept that long."""


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def evaluate_all(
    evaluator: Evaluator, refs: Sequence[TreeRef], jobs: int, progress: Progress
) -> list[dict[str, Any]]:
    """Return the documents of trees, in their order.

    Args:
        jobs: how many processes to use.
        progress: is told how many trees are done.
    """
    run = _Run(evaluator, refs, jobs, progress)
    places: Sequence[int] = range(len(refs))
    while places:
        places = run.step(places)
    if evaluator.options.cache:
        Store(user_folder() / ANSWERS).trim()
    found = [run.found[place] for place in range(len(refs))]
    _add_versions(evaluator, refs, found)
    return [each.document for each in found]


def _add_versions(
    evaluator: Evaluator, refs: Sequence[TreeRef], found: Sequence[Evaluation]
) -> None:
    """Add the versions of nearest tags, by one call of git for each repository."""
    documents: dict[str, list[dict[str, Any]]] = {}
    for ref, each in zip(refs, found, strict=True):
        if each.version_of_tag:
            documents.setdefault(ref.place, []).append(each.document["tree"])
    for place, trees in documents.items():
        versions = evaluator.repositories[place].describe([tree["revision"] for tree in trees])
        for tree, version in zip(trees, versions, strict=True):
            tree["version"] = version


@dataclass(slots=True)
class _Run:
    """Evaluate as few trees as possible, and take over for the rest what holds of them as well."""

    evaluator: Evaluator
    refs: Sequence[TreeRef]
    jobs: int
    progress: Progress
    found: dict[int, Evaluation] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)
    _diffs: dict[str, RangeDiff] = field(default_factory=dict)
    _packages: dict[str, int] = field(default_factory=dict)
    _prepared: int = 0

    def __post_init__(self) -> None:
        places = {(ref.place, ref.revision): n for n, ref in enumerate(self.refs)}
        pairs: dict[str, list[tuple[str, str]]] = {}
        for place, ref in enumerate(self.refs):
            if ref.before:
                self._before[place] = places[(ref.place, ref.before)]
                pairs.setdefault(ref.place, []).append((ref.revision, ref.before))
        for repository, both in pairs.items():
            # Where git cannot tell, every commit is opened.
            with suppress(Refused):
                self._diffs[repository] = RangeDiff(self.evaluator.repositories[repository], both)

    def step(self, places: Sequence[int]) -> Sequence[int]:
        """Evaluate trees; return those that wait for the ones before them, as these may do."""
        ready, waiting = [], []
        guess: Evaluation | None = None
        for place in places:
            before = self._before.get(place)
            known = None if before is None else self.found.get(before)
            guess = known or guess
            if before is None or (known and not self._take_over(place, known)):
                ready.append(place)
            elif known is None and guess and not self._unaffected(place, guess):
                # Not to be waited for: it is evaluated beside the one before it.
                ready.append(place)
            elif known is None:
                waiting.append(place)
        self._evaluate(ready)
        self.progress(len(self.found))
        return waiting

    def _take_over(self, place: int, before: Evaluation) -> bool:
        """Take for a commit what holds of the one before it, or what an earlier run found out."""
        known = None
        if before.kept:
            # To look up what is kept costs less than to look into files.
            if self._unaffected(place, before, search=False):
                known = before
            else:
                if place >= self._prepared:
                    self._prepared = place + _AT_ONCE
                    self.evaluator.prepare(self.refs[place : self._prepared])
                known, _ = self.evaluator.kept(self.refs[place])
        if known is None and self._unaffected(place, before):
            known = before
        if known is None:
            return False
        self.found[place] = known.for_revision(self.refs[place])
        return True

    def _unaffected(self, place: int, other: Evaluation, *, search: bool = True) -> bool:
        ref = self.refs[place]
        diff = self._diffs.get(ref.place)
        if diff is None or other.package is None:
            return False
        return diff.unaffected(ref.revision, other.package, other.asked, search=search)

    def _evaluate(self, places: Sequence[int]) -> None:
        firsts: list[int] = []
        others: dict[int, int] = {}
        for start in range(0, len(places), _AT_ONCE):
            now = places[start : start + _AT_ONCE]
            self.evaluator.prepare([self.refs[place] for place in now])
            for place in now:
                kept, package = self.evaluator.kept(self.refs[place])
                if kept is not None:
                    self.found[place] = kept
                elif package in self._packages:
                    # Revisions with the same package differ in their names only.
                    others[place] = self._packages[package]
                else:
                    firsts.append(place)
                    if package:
                        self._packages[package] = place
        if firsts:
            self._evaluate_each(firsts)
        for place, first in others.items():
            self.found[place] = self.found[first].for_revision(self.refs[place])

    def _evaluate_each(self, places: Sequence[int]) -> None:
        self.progress(len(self.found))
        load_ahead()
        from sgl_npu_patch.matrix.processes import evaluate_each

        def done(number: int, found: Evaluation) -> None:
            self.found[places[number]] = found
            self.progress(len(self.found))

        refs = [self.refs[place] for place in places]
        evaluate_each(self.evaluator, refs, self.jobs, done)
