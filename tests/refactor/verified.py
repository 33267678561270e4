"""Verify patched refactorings: what a release passes, its refactoring passes too."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify.run import verify
from tests.refactor.project import (
    DISPATCH,
    HANDLER,
    LISTS,
    MODE,
    SAMPLER_FUNCTIONS,
    SAMPLER_METHODS,
    Case,
    base,
    plan_of,
)
from tests.upstream.releases import release_tree

HANDLED = ("backend_lists", "radix_cache", "sampling_backend", "launch_guards")
SEAMS = {
    **dict.fromkeys((HANDLER, *LISTS), HANDLED),
    **dict.fromkeys((*MODE, "mode"), ("batch_invariant", "npu_ops")),
    **dict.fromkeys((*SAMPLER_METHODS, *SAMPLER_FUNCTIONS, "Sampler"), ("sampler",)),
    DISPATCH: ("device_dispatch", "batch_invariant"),
}
"""Whose behaviour a refactoring of a definition could change; that of prefill is only read."""
VERIFIED = ("0.5.12.post1", "0.5.23")
"""The releases whose refactorings are verified: the last that is patched, and one repaired."""


def verified(case: Case, *, static_only: bool = False) -> str:
    """Apply the series to a case and verify the result, the refactored release being the original.

    All static checks are run, and those of the behaviour that what was refactored has a part in.

    Returns:
        ``passed``; ``not applicable: IDS``, of the checks that the release passes and that say
        nothing of the refactoring; or ``false failure: IDS``.
    """
    touched = case.touched.partition(" ")[0]
    touched = HANDLER if touched in symbols.HANDLER.names else touched
    seams = () if static_only else SEAMS.get(touched, ())
    expected = {**_of_release(case.version, ()), **(_of_release(case.version, seams))}
    found = _verdicts(case, seams)
    lost = [name for name, verdict in found.items() if verdict == "not-applicable"]
    lost = [name for name in lost if expected.get(name) == "pass"]
    failed = [n for n, verdict in found.items() if verdict == "fail" and expected.get(n) != "fail"]
    if failed:
        return f"false failure: {', '.join(failed)}"
    return f"not applicable: {', '.join(lost)}" if lost else "passed"


@cache
def _of_release(version: str, seams: Sequence[str]) -> Mapping[str, str]:
    return _verdicts(Case(version, "", base(version)), seams)


def _verdicts(case: Case, seams: Sequence[str]) -> Mapping[str, str]:
    plan = plan_of(case.files)
    assert not plan.conflicts
    after = {**case.files, **{c.path: c.after for c in plan.changes.changes}}
    with _laid_out(case, case.files) as original, _laid_out(case, after) as patched:
        trees = (open_directory(patched, PROJECT), open_directory(original, PROJECT))
        found = verify(trees[0], base=trees[1], static_only=True).results
        if seams:
            found += verify(trees[0], base=trees[1], only=seams).results
    return {result.id: result.verdict for result in found}


@contextmanager
def _laid_out(case: Case, files: Mapping[PurePosixPath, bytes]) -> Iterator[Path]:
    """Lay out a release with other contents of some files; the rest are links to the cache."""
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as folder:
        root = Path(folder)
        shutil.copytree(release_tree(case.version) / "sglang", root / "sglang", copy_function=_link)
        for path, data in files.items():
            target = root / path
            if not target.exists() or target.read_bytes() != data:
                target.unlink(missing_ok=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        yield root


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
