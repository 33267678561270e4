"""Run `matrix`: select trees, evaluate them, compare them with a baseline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.matrix import baseline as baselines
from sgl_npu_patch.matrix.content import Options
from sgl_npu_patch.matrix.evaluate import Evaluator
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.run import evaluate_all, processors
from sgl_npu_patch.matrix.selection import Selection, select
from sgl_npu_patch.reports.codec import header

Watch = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Is given the number of trees; what it yields is then told how many are done."""


def matrix(
    selection: Selection,
    options: Options,
    *,
    baseline: Path | None,
    write_baseline: bool,
    jobs: int | None,
    watch: Watch,
) -> dict[str, Any]:
    """Evaluate trees, and return the document that all reports are made from.

    Args:
        baseline: compare with this file; the document then has ``baseline`` and ``changes``.
        write_baseline: write that file instead.
        jobs: how many processes to use; by default as many as there are processors.

    Raises:
        Refused: what is asked for cannot be found, or the baseline be read or written.
        UsageError: the options do not go together.
    """
    if write_baseline and baseline is None:
        raise UsageError("--write-baseline needs --baseline FILE, which says where to")
    expected = None if baseline is None or write_baseline else baselines.read(baseline)
    with Repositories() as repositories:
        refs = select(selection, repositories)
        with watch(len(refs)) as progress:
            evaluator = Evaluator(options, repositories)
            results = evaluate_all(evaluator, refs, jobs or processors(), progress)
            document = header() | {"results": results, "changes": []}
            if expected is not None:
                changes = baselines.compare(expected, results)
                document |= {"baseline": str(baseline), "changes": changes}
                if selection.repository:
                    from sgl_npu_patch.matrix.blame import blame

                    place = selection.repository
                    blame(repositories, place, changes, expected, results, cache=options.cache)
    if write_baseline and baseline is not None:
        baselines.write(baseline, results)
    return document
