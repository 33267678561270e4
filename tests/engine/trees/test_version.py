from __future__ import annotations

from pathlib import Path

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.trees.open import open_tree
from sgl_npu_patch.engine.trees.version import package_version
from tests.engine.package import build, snapshot
from tests.engine.repositories import commit, fake_program, git, output


def versions(folder: Path) -> set[str | None]:
    """Return the version of a checkout and that of its HEAD, which are to be the same."""
    with open_tree(folder, PROJECT, "HEAD") as revision:
        return {package_version(open_directory(folder, PROJECT)), package_version(revision)}


@pytest.fixture
def unstated(root: Path) -> Path:
    """Make a checkout of two commits whose package does not state its version."""
    (root / "python/sglang/version.py").unlink()
    commit(root)
    git(root, "commit", "--quiet", "--allow-empty", "--message", "later")
    return root


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b'__version__ = "0.5.9"\n', "0.5.9"),
        (b"import x\r\n__version__ = version = '1.0.post1+fork'\r\n", "1.0.post1+fork"),
        (b"# __version__ = '1'\n", None),
        (None, None),
    ],
)
def test_files_state_a_version(tmp_path: Path, content: bytes | None, version: str | None) -> None:
    build(tmp_path, version=content)
    assert package_version(open_directory(tmp_path, PROJECT)) == version


def test_files_win_over_tags(root: Path) -> None:
    git(root, "tag", "v9.9")
    assert versions(root) == {"0.0.1"}


@pytest.mark.parametrize("inside", ["", "python", "python/sglang"])
def test_tag(unstated: Path, inside: str) -> None:
    git(unstated, "tag", "v0.5.9", "HEAD~1")
    short = output(unstated, "rev-parse", "--short", "HEAD")
    assert versions(unstated / inside) == {f"0.5.9-1-g{short}"}
    git(unstated, "tag", "--annotate", "--message", "x", "v0.5.10rc0")
    assert versions(unstated / inside) == {"0.5.10rc0"}


def test_tags_that_name_no_version(unstated: Path) -> None:
    for name in ("gateway-v0.3", "vendored", "0.5.9"):
        git(unstated, "tag", name)
    assert versions(unstated) == {None}


def test_no_tag_can_be_reached(unstated: Path) -> None:
    git(unstated, "switch", "--quiet", "--orphan", "other")
    git(unstated, "commit", "--quiet", "--allow-empty", "--message", "other")
    git(unstated, "tag", "v1.0")
    git(unstated, "switch", "--quiet", "main")
    assert versions(unstated) == {None}


def test_tags_of_another_project(tmp_path: Path) -> None:
    build(tmp_path / "third_party/sglang", version=None)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", "v3.1")
    assert versions(tmp_path / "third_party/sglang") == {None}


def test_repository_without_a_commit(tmp_path: Path) -> None:
    build(tmp_path, version=None)
    git(tmp_path, "init", "--quiet")
    assert package_version(open_directory(tmp_path, PROJECT)) is None


def test_git_is_missing(unstated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(unstated, "tag", "v0.5.9")
    monkeypatch.setenv("PATH", str(unstated))
    assert package_version(open_directory(unstated, PROJECT)) is None


def test_nothing_that_is_configured_runs(unstated: Path, tmp_path: Path) -> None:
    git(unstated, "tag", "v0.5.9")
    program = fake_program(tmp_path)
    (unstated / ".gitattributes").write_text("*.py filter=x\n")
    (unstated / "python/sglang/__init__.py").write_text("changed")
    for name in ("filter.x.clean", "filter.x.process", "core.fsmonitor", "pager.describe"):
        git(unstated, "config", name, str(program))
    git(unstated, "config", "alias.describe", f"!{program}")
    before = snapshot(unstated)
    assert versions(unstated) == {"0.5.9"}
    assert snapshot(unstated) == before
    assert not (tmp_path / "ran").exists()
