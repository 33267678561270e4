from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import FileChange
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.engine.package import COMMON, MODE, build

PACKAGE = PurePosixPath("sglang")


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    build(tmp_path, "sglang")
    return Overlay(open_directory(tmp_path, PROJECT))


def test_pending_content_is_seen_first(overlay: Overlay) -> None:
    path = PACKAGE / COMMON
    before = overlay.read(path)
    overlay.write(path, b"x = 1\n")
    assert overlay.read(path) == b"x = 1\n"
    source = overlay.source(path)
    assert source is not None
    assert source.text == "x = 1\n"
    assert overlay.tree.read(path) == before


def test_fork_is_not_seen_until_it_is_merged(overlay: Overlay) -> None:
    fork = overlay.fork()
    fork.write(PACKAGE / "new.py", b"new = 1\n")
    assert overlay.read(PACKAGE / "new.py") is None
    assert overlay.source(PACKAGE / "new.py") is None
    overlay.merge(fork)
    assert overlay.read(PACKAGE / "new.py") == b"new = 1\n"


def test_search_sees_what_is_pending(overlay: Overlay) -> None:
    assert overlay.mentioning("is_npu") == (PACKAGE / COMMON,)
    overlay.write(PACKAGE / COMMON, b"nothing = 1\n")
    overlay.write(PACKAGE / "new.py", b"is_npu()\n")
    source = overlay.source(PACKAGE / MODE)
    assert source is not None
    overlay.write(PACKAGE / MODE, source.splice(0, 0, "# is_npu\n"))
    assert overlay.mentioning("is_npu") == (PACKAGE / "new.py", PACKAGE / MODE)


def test_search_by_a_common_stem_finds_the_same(overlay: Overlay) -> None:
    for name in ("enable_batch_invariant_mode", "_handle_deterministic_inference"):
        needle = name.encode()
        assert overlay.mentioning(name) == overlay.tree.containing(needle)


def test_changes_are_sorted_and_real(overlay: Overlay) -> None:
    same = overlay.read(PACKAGE / COMMON)
    assert same is not None
    overlay.write(PACKAGE / "z.py", b"z = 1\n")
    overlay.write(PACKAGE / COMMON, same)
    overlay.write(PACKAGE / MODE, b"x = 1\n")
    changes = overlay.changes()
    assert changes.changes == (
        FileChange(PACKAGE / MODE, overlay.tree.read(PACKAGE / MODE), b"x = 1\n"),
        FileChange(PACKAGE / "z.py", None, b"z = 1\n"),
    )
    assert (changes.changed, changes.added) == ((PACKAGE / MODE,), (PACKAGE / "z.py",))
