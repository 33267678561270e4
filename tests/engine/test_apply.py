"""The Python API, as far as the commands' tests do not go through it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import sgl_npu_patch
from sgl_npu_patch import PROJECT, SERIES, apply, open_tree, plan
from sgl_npu_patch.engine.errors import Conflicting, Refused, UsageError
from tests.engine.package import ARGUMENTS, build, contents
from tests.engine.repositories import commit, git

FILE = f"python/sglang/{ARGUMENTS}"


def patch(root: Path) -> None:
    with open_tree(root, PROJECT) as tree:
        apply(tree, plan(tree, SERIES))


def test_names_of_the_package_are_loaded_when_they_are_asked_for() -> None:
    assert all(hasattr(sgl_npu_patch, name) for name in sgl_npu_patch.__all__)
    with pytest.raises(AttributeError, match="other"):
        getattr(sgl_npu_patch, "other")  # noqa: B009  # typed, so that mypy would refuse it


def test_a_plan_with_conflicts_is_not_written(tmp_path: Path) -> None:
    build(tmp_path, common="def is_npu():\n    return False\n")
    before = contents(tmp_path)
    with pytest.raises(Conflicting, match=r"in conflict: device_dispatch, .*nothing was changed"):
        patch(tmp_path)
    assert contents(tmp_path) == before


def test_only_a_folder_is_written_to(tmp_path: Path) -> None:
    build(tmp_path)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    with (
        open_tree(tmp_path, PROJECT, "HEAD") as tree,
        pytest.raises(UsageError, match="only a tree in a folder"),
    ):
        apply(tree, plan(tree, SERIES))


@pytest.mark.parametrize("resolved", [False, True])
def test_an_unresolved_merge_is_called_that(tmp_path: Path, resolved: bool) -> None:
    build(tmp_path)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    git(tmp_path, "tag", "base")
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    for branch in ("other", "main"):
        git(tmp_path, "switch", "--quiet", "-C", branch, "base")
        (tmp_path / FILE).write_text(text.replace("self.last = True", f"self.last = '{branch}'"))
        commit(tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        git(tmp_path, "merge", "--quiet", "other")
    wanted = rf"{FILE}:\d+: holds an unresolved merge conflict; resolve it, then run again"
    if resolved:
        (tmp_path / FILE).write_text(text)
        wanted = f"unmerged files would be written: {FILE}; .*`git add` them"
    with pytest.raises(Refused, match=wanted):
        patch(tmp_path)
