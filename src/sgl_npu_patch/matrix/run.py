"""Judge all trees of a run and give the one document that every report is made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from sgl_npu_patch.engine.cache import Store, user_folder
from sgl_npu_patch.matrix.judge import ANSWERS, Judge, Options
from sgl_npu_patch.matrix.selection import Wanted
from sgl_npu_patch.reports.document import header

Progress = Callable[[int], None]
_AT_ONCE = 500
"""How many revisions to look up at once; what is read of each is kept that long."""


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def judge_trees(
    wanted: Sequence[Wanted], options: Options, jobs: int, progress: Progress
) -> dict[str, Any]:
    """Give the document of a run: one result a tree, in the order asked.

    Args:
        progress: is told how many trees are done.
    """
    results: dict[int, dict[str, Any]] = {}
    same: dict[str, list[int]] = {}
    with Judge(options) as judge:
        for place, each in enumerate(wanted):
            if place % _AT_ONCE == 0:
                judge.prepare(wanted[place : place + _AT_ONCE])
            known, package = judge.known(each)
            if known is not None:
                results[place] = known
            else:
                # Revisions with the same package differ in their names only.
                same.setdefault(package or f"{place}", []).append(place)
        progress(len(results))
        places = [first for first, *_ in same.values()]
        if places:
            from sgl_npu_patch.matrix.processes import judge_all

            def done(number: int, document: dict[str, Any]) -> None:
                results[places[number]] = document
                progress(len(results))

            judge_all(judge, [wanted[place] for place in places], jobs, done)
            if options.cache:
                Store(user_folder() / ANSWERS).trim()
        for first, *others in same.values():
            for place in others:
                results[place] = judge.alike(wanted[place], results[first])
    return header() | {"results": [results[place] for place in range(len(wanted))], "changes": []}
