from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.git import uncommitted, unmerged, work_tree
from tests.engine.repositories import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = (tmp_path / "repository").resolve()
    (root / "sub").mkdir(parents=True)
    for name in ("one.py", "sub/two.py", "sub/od d\u00e9\"'.py"):
        (root / name).write_text("old\n", encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    return root


def dirty(root: Path) -> list[str]:
    return sorted(uncommitted(root, list(root.rglob("*.py"))))


def test_work_tree_is_found_from_any_depth(repository: Path, tmp_path: Path) -> None:
    assert work_tree(repository) == repository
    assert work_tree(repository / "sub") == repository
    (tmp_path / "link").symlink_to(repository / "sub")
    assert work_tree(tmp_path / "link") == repository
    assert work_tree(tmp_path) is None


def test_nearest_work_tree_wins(repository: Path) -> None:
    git(repository / "sub", "init", "--quiet")
    assert work_tree(repository / "sub") == repository / "sub"


def test_folder_that_only_looks_like_a_bare_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--bare", "bare")
    assert work_tree(tmp_path / "bare") is None


def test_clean(repository: Path) -> None:
    assert dirty(repository) == []
    assert uncommitted(repository, []) == []
    assert uncommitted(repository, [repository / "not/there.py"]) == []


def test_new_time_alone_is_no_change(repository: Path) -> None:
    os.utime(repository / "one.py", (0, 0))
    assert dirty(repository) == []


def test_changed_staged_untracked_deleted(repository: Path) -> None:
    (repository / "one.py").write_text("new\n", encoding="utf-8")
    git(repository, "add", "one.py")
    (repository / "sub/od d\u00e9\"'.py").write_text("new\n", encoding="utf-8")
    (repository / "new.py").touch()
    assert dirty(repository) == ["new.py", "one.py", "sub/od d\u00e9\"'.py"]
    gone = repository / "sub/two.py"
    gone.unlink()
    assert uncommitted(repository, [gone]) == ["sub/two.py"]


def test_only_what_was_asked_for_counts(repository: Path) -> None:
    (repository / "one.py").write_text("new\n", encoding="utf-8")
    assert uncommitted(repository, [repository / "sub/two.py"]) == []


def test_renamed_file_is_named_whole(repository: Path) -> None:
    git(repository, "mv", "one.py", "renamed.py")
    both = [repository / "one.py", repository / "renamed.py"]
    assert sorted(uncommitted(repository, both)) == ["one.py", "renamed.py"]


def test_ignored_file_is_nobodys_business(repository: Path) -> None:
    (repository / ".gitignore").write_text("ignored/\n", encoding="utf-8")
    (repository / "ignored").mkdir()
    (repository / "ignored/three.py").touch()
    assert dirty(repository) == []


def test_name_is_taken_literally(repository: Path) -> None:
    (repository / "on*.py").write_text("new\n", encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "second")
    (repository / "one.py").write_text("new\n", encoding="utf-8")
    assert uncommitted(repository, [repository / "on*.py"]) == []


def test_path_out_of_the_work_tree_is_not_judged(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    (repository / "link.py").symlink_to(tmp_path / "outside.py")
    assert uncommitted(repository, [repository / "link.py"]) == []


def test_linked_work_tree_and_submodule(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "../linked")
    git(repository, "submodule", "add", "--quiet", str(repository), "module")
    for root in (tmp_path.resolve() / "linked", repository / "module"):
        assert (root / ".git").is_file()
        assert work_tree(root / "sub") == root
        assert dirty(root) == []
        (root / "one.py").write_text("new\n", encoding="utf-8")
        assert dirty(root) == ["one.py"]


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"])
def test_hook_of_another_repository(
    repository: Path, tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    elsewhere = {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index", "GIT_WORK_TREE": ""}
    monkeypatch.setenv(variable, str(tmp_path / "other" / elsewhere[variable]))
    assert dirty(repository) == []
    (repository / "one.py").write_text("new\n", encoding="utf-8")
    assert dirty(repository) == ["one.py"]


def test_repository_cannot_run_a_command(repository: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n", encoding="utf-8")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    assert dirty(repository) == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status.showUntrackedFiles", "no"),
        ("status.relativePaths", "true"),
        ("status.short", "true"),
        ("status.branch", "true"),
        ("color.status", "always"),
        ("core.quotePath", "true"),
        ("column.ui", "always"),
    ],
)
def test_configuration_does_not_change_the_answer(repository: Path, name: str, value: str) -> None:
    git(repository, "config", name, value)
    (repository / "sub/two.py").write_text("new\n", encoding="utf-8")
    (repository / "sub/new.py").touch()
    assert dirty(repository) == ["sub/new.py", "sub/two.py"]


def test_index_is_not_rewritten(repository: Path) -> None:
    os.utime(repository / "one.py", (0, 0))
    before = (repository / ".git/index").read_bytes()
    assert dirty(repository) == []
    assert (repository / ".git/index").read_bytes() == before


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "inside another repository"])
def test_broken_repository_is_refused(repository: Path, tmp_path: Path, outer: bool) -> None:
    folder = repository / "sub" if outer else tmp_path.resolve()
    (folder / ".git").mkdir()
    (folder / "two.py").touch()
    with pytest.raises(Refused, match=r"git status failed: .*not a git repository.*--allow-dirty"):
        uncommitted(folder, [folder / "two.py"])


def test_git_is_missing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    with pytest.raises(Refused, match=r"git cannot be run.*--allow-dirty"):
        dirty(repository)


def test_unmerged_paths(repository: Path) -> None:
    git(repository, "tag", "base")
    for branch, text in (("other", "theirs\n"), ("main", "ours\n")):
        git(repository, "switch", "--quiet", "-C", branch, "base")
        for name in ("one.py", "sub/od d\u00e9\"'.py"):
            (repository / name).write_text(text)
        git(repository, "commit", "--quiet", "--all", "--message", branch)
    assert unmerged(repository) == frozenset()
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "--quiet", "other")
    assert unmerged(repository) == {"one.py", "sub/od d\u00e9\"'.py"}
    git(repository, "add", "one.py")
    assert unmerged(repository) == {"sub/od d\u00e9\"'.py"}


def test_unmerged_paths_of_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unmerged(tmp_path) == frozenset()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unmerged(tmp_path) == frozenset()
