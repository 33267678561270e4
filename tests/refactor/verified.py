"""Verify patched refactorings: what a release passes, its refactoring passes too."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify.run import verify
from tests.refactor.project import Case, base, plan_of
from tests.upstream.releases import release_tree


def verified(case: Case, *, static_only: bool = False) -> str:
    """Apply the series to a case and verify the result, the refactored release being the original.

    Returns:
        ``passed``; ``not applicable: IDS``, of the checks that the release passes and that say
        nothing of the refactoring; or ``false failure: IDS``.
    """
    expected = _of_release(case.version, static_only)
    found = _verdicts(case, static_only)
    lost = [name for name, verdict in found.items() if verdict == "not-applicable"]
    lost = [name for name in lost if expected.get(name) == "pass"]
    failed = [n for n, verdict in found.items() if verdict == "fail" and expected.get(n) != "fail"]
    if failed:
        return f"false failure: {', '.join(failed)}"
    return f"not applicable: {', '.join(lost)}" if lost else "passed"


@cache
def _of_release(version: str, static_only: bool) -> Mapping[str, str]:
    return _verdicts(Case(version, "", base(version)), static_only)


def _verdicts(case: Case, static_only: bool) -> Mapping[str, str]:
    plan = plan_of(case.files)
    assert not plan.conflicts
    after = {**case.files, **{c.path: c.after for c in plan.changes.changes}}
    with _laid_out(case, case.files) as original, _laid_out(case, after) as patched:
        found = verify(
            open_directory(patched, PROJECT),
            base=open_directory(original, PROJECT),
            static_only=static_only,
        )
    return {result.id: result.verdict for result in found.results}


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
