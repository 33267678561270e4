"""What `audit` finds on real releases: omissions put there, a reviewed sample, what layers show."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.audit.scan import Call
from sgl_npu_patch.engine.tree import SourceTree, open_directory
from tests.audit.seeds import SEEDS, Seed
from tests.helpers import ROOT, MemoryTree
from tests.upstream.program import program
from tests.upstream.releases import RELEASES_NATIVE, RELEASES_PATCHED, release_tree
from tests.upstream.trees import patched_tree

RELEASE = "0.5.12.post1"
ADDED = "srt/launch.py", b"enable_deterministic_inference = True\n"


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    # Syntax trees are large; the program switches it off too.
    gc.disable()
    yield
    gc.enable()


def findings(tree: SourceTree) -> Counter[tuple[str, str]]:
    return Counter(
        (call.site.path.relative_to(tree.package).as_posix(), call.name)
        for call in audit(tree).findings
    )


def few_files(names: tuple[str, ...]) -> dict[PurePosixPath, bytes]:
    package = patched_tree(RELEASE) / "sglang"
    files = {ROOT / name: (package / name).read_bytes() for name in names}
    return files | {ROOT / ADDED[0]: ADDED[1]}


@cache
def before(names: tuple[str, ...]) -> Counter[tuple[str, str]]:
    return findings(MemoryTree(few_files(names)))


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_an_omission_is_found(seed: Seed) -> None:
    files = few_files(seed.files)
    files[ROOT / seed.path] = seed.edit(files[ROOT / seed.path])
    new = findings(MemoryTree(files)) - before(seed.files)
    assert new[seed.at or seed.path, seed.operator] > 0


def test_there_are_enough_omissions() -> None:
    assert len(SEEDS) >= 50
