"""Judge all trees of a run and give the one document that every report is made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.store import Store, user_folder
from sgl_npu_patch.matrix.judge import ANSWERS, Judge, Judged, load_ahead
from sgl_npu_patch.matrix.neighbours import Neighbours
from sgl_npu_patch.matrix.selection import Wanted
from sgl_npu_patch.reports.codec import header

Progress = Callable[[int], None]
_AT_ONCE = 500
"""How many revisions to look up at once; what is read of each is kept that long."""


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def judge_trees(
    judge: Judge, wanted: Sequence[Wanted], jobs: int, progress: Progress
) -> dict[str, Any]:
    """Give the document of a run: one result a tree, in the order asked.

    Args:
        progress: is told how many trees are done.
    """
    run = _Run(judge, wanted, jobs, progress)
    places: Sequence[int] = range(len(wanted))
    while places:
        places = run.go_on(places)
    if judge.options.cache:
        Store(user_folder() / ANSWERS).trim()
    found = [run.found[place].document for place in range(len(wanted))]
    return header() | {"results": found, "changes": []}


@dataclass(slots=True)
class _Run:
    """Judge what must be judged, and take over for the rest what holds of it as well."""

    judge: Judge
    wanted: Sequence[Wanted]
    jobs: int
    progress: Progress
    found: dict[int, Judged] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)
    _neighbours: dict[str, Neighbours] = field(default_factory=dict)
    _packages: dict[str, int] = field(default_factory=dict)
    _prepared: int = 0

    def __post_init__(self) -> None:
        places = {(each.place, each.revision): n for n, each in enumerate(self.wanted)}
        pairs: dict[str, list[tuple[str, str]]] = {}
        for place, each in enumerate(self.wanted):
            if each.before:
                self._before[place] = places[(each.place, each.before)]
                pairs.setdefault(each.place, []).append((each.revision, each.before))
        for repository, both in pairs.items():
            # Where git cannot tell, every commit is opened.
            with suppress(Refused):
                self._neighbours[repository] = Neighbours(self.judge.repository(repository), both)

    def go_on(self, places: Sequence[int]) -> Sequence[int]:
        """Judge trees; give those that may be as the ones before them, once these are judged."""
        first, waiting = [], []
        guess: Judged | None = None
        for place in places:
            before = self._before.get(place)
            known = None if before is None else self.found.get(before)
            guess = known or guess
            if before is None or (known and not self._take_over(place, known)):
                first.append(place)
            elif known is None and guess and not self._alike(place, guess):
                # Not to be waited for: it is judged beside the one before it.
                first.append(place)
            elif known is None:
                waiting.append(place)
        self._judge(first)
        self.progress(len(self.found))
        return waiting

    def _take_over(self, place: int, before: Judged) -> bool:
        """Give a commit what holds of the one before it, or what another run found out."""
        known = None
        if before.kept:
            # To look up what is kept costs less than to look into files.
            if self._alike(place, before, search=False):
                known = before
            else:
                if place >= self._prepared:
                    self._prepared = place + _AT_ONCE
                    self.judge.prepare(self.wanted[place : self._prepared])
                known, _ = self.judge.known(self.wanted[place])
        if known is None and self._alike(place, before):
            known = before
        if known is None:
            return False
        self.found[place] = self.judge.alike(self.wanted[place], known)
        return True

    def _alike(self, place: int, other: Judged, *, search: bool = True) -> bool:
        each = self.wanted[place]
        compared = self._neighbours.get(each.place)
        if compared is None or other.package is None:
            return False
        return compared.alike(each.revision, other.package, other.asked, search=search)

    def _judge(self, places: Sequence[int]) -> None:
        firsts: list[int] = []
        others: dict[int, int] = {}
        for start in range(0, len(places), _AT_ONCE):
            now = places[start : start + _AT_ONCE]
            self.judge.prepare([self.wanted[place] for place in now])
            for place in now:
                known, package = self.judge.known(self.wanted[place])
                if known is not None:
                    self.found[place] = known
                elif package in self._packages:
                    # Revisions with the same package differ in their names only.
                    others[place] = self._packages[package]
                else:
                    firsts.append(place)
                    if package:
                        self._packages[package] = place
        if firsts:
            self._judge_each(firsts)
        for place, first in others.items():
            self.found[place] = self.judge.alike(self.wanted[place], self.found[first])

    def _judge_each(self, places: Sequence[int]) -> None:
        self.progress(len(self.found))
        load_ahead()
        from sgl_npu_patch.matrix.processes import judge_all

        def done(number: int, judged: Judged) -> None:
            self.found[places[number]] = judged
            self.progress(len(self.found))

        judge_all(self.judge, [self.wanted[place] for place in places], self.jobs, done)
