"""Lay out SGLang releases as `apply` leaves them."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from filelock import FileLock

from tests.conftest import TREES
from tests.upstream.golden import shapes
from tests.upstream.program import Run, program
from tests.upstream.releases import release_tree

SHAPES = shapes()


@dataclass(frozen=True, slots=True)
class Patched:
    """A release, a patched copy of it, and what `apply --diff` printed."""

    release: str
    tree: Path
    apply: Run

    @property
    def pristine(self) -> Path:
        """The release as it is published."""
        return release_tree(self.release)

    @property
    def written(self) -> list[PurePosixPath]:
        """The files that are not as in the release."""
        return [*self.apply.changed, *self.apply.added]


def patched_tree(version: str) -> Path:
    """Return a release's `srt` after `apply`, made once a run and not to be written to."""
    return patched(version).tree


@cache
def patched(version: str) -> Patched:
    """Patch a release, unless another process of this run has done so."""
    tree = _folder() / version
    printed = tree.with_name(f"{version}.printed")
    with FileLock(f"{tree}.lock"):
        if not printed.exists():
            _lay_out(release_tree(version), tree)
            run = program("apply", tree, "--diff", "--format", "json")
            printed.write_bytes(pickle.dumps(run))
    run = pickle.loads(printed.read_bytes())
    if run.code:
        raise RuntimeError(f"exit code {run.code}\n{run.stdout.decode()}{run.stderr}")
    return Patched(version, tree, run)


def sampled(versions: tuple[str, ...], often: tuple[str, ...] = SHAPES) -> list[object]:
    """Return the releases as parameters of a test, of which all but some are slow."""
    slow = pytest.mark.slow
    return [pytest.param(each, marks=() if each in often else slow) for each in versions]


_OWN = tempfile.TemporaryDirectory(prefix="sgl-npu-patch-trees-", ignore_cleanup_errors=True)


def _folder() -> Path:
    return Path(os.environ.get(TREES, _OWN.name))


def _lay_out(pristine: Path, tree: Path) -> None:
    package = tree / "sglang"
    package.mkdir(parents=True)
    for module in (pristine / "sglang").glob("*.py"):
        shutil.copyfile(module, package / module.name)
    shutil.copytree(pristine / "sglang" / "srt", package / "srt", ignore=_ignored)


def _ignored(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if "." in name and not name.endswith(".py")]
