from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.matrix import releases
from sgl_npu_patch.matrix.releases import select_releases
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.revisions import files_read, select_revisions
from sgl_npu_patch.matrix.selection import Selection, select, select_folders
from tests.engine.package import COMMON, SOURCES
from tests.engine.repositories import git, output
from tests.matrix.histories import BROKEN, OTHER, commit_of, history

TAGS = {"v0.5.9": 0, "v0.5.10": 2, "v0.5.10rc0": 1, "v0.6.0": 3, "nightly": 3}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    commits = [{OTHER: f"x = {number}\n"} for number in range(6)]
    commits[4] = {COMMON: BROKEN}
    folder = history(tmp_path / "repository", commits, TAGS)
    git(folder, "update-ref", "refs/remotes/origin/main", "refs/heads/main")
    git(folder, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(folder, "update-ref", "refs/heads/v0.6.0", "refs/heads/main")
    return folder


@pytest.fixture
def repository(bare: Path) -> Iterator[Repository]:
    with open_repository(bare, PROJECT) as opened:
        yield opened


def names(
    repository: Repository, *patterns: str, first_parent: bool = False, touching: bool = False
) -> list[str]:
    found = select_revisions(repository, patterns, first_parent=first_parent, touching=touching)
    return list(dict.fromkeys(ref.name for ref in found))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["v0.5.*"], ["v0.5.9", "v0.5.10rc0", "v0.5.10"]),
        (["v0.5.10", "v0.5.*"], ["v0.5.10", "v0.5.9", "v0.5.10rc0"]),
        (["*"], [
            "v0.5.9", "v0.5.10rc0", "v0.5.10", "refs/tags/v0.6.0", "nightly",
            "refs/heads/v0.6.0", "main", "origin/main",
        ]),
        (["origin/*"], ["origin/main"]),
        (["v0.5.1[0-9]"], ["v0.5.10"]),
        (["nightl?", "HEAD~2", "nightly"], ["nightly", "HEAD~2"]),
    ],
)  # fmt: skip
def test_names(repository: Repository, patterns: list[str], expected: list[str]) -> None:
    assert names(repository, *patterns) == expected


def test_each_name_has_its_commit(bare: Path, repository: Repository) -> None:
    git(bare, "-c", "user.name=x", "-c", "user.email=x@x", "tag", "-a", "-m", "x", "w1", "v0.5.9")
    for ref in select_revisions(repository, ["w*", "v0.5.9"]):
        assert ref.revision == commit_of(bare, "v0.5.9^{commit}")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("v0.7*", r"no tag or branch matches 'v0.7\*'; of 8 names, near are: v0\.5\.9"),
        ("v0.5.11", r"'v0.5.11' is no revision .*near are: v0\.5\.10"),
        ("x..main", r"'x' is no revision"),
        ("main..v0.5.9", r"main\.\.v0\.5\.9 holds no commits$"),
        ("--output=x", r"'--output=x' is no revision"),
    ],
)
def test_nothing_of_that_name(repository: Repository, pattern: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        names(repository, "main", pattern)


def test_repository_without_names(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    with (
        open_repository(tmp_path / "empty", PROJECT) as opened,
        pytest.raises(Refused, match="has no tags and no branches"),
    ):
        names(opened, "v*")


@pytest.mark.parametrize("pattern", ["a...b", "..b", "a..", "a..b..c"])
def test_no_range(repository: Repository, pattern: str) -> None:
    with pytest.raises(UsageError, match=r"is no range: give A\.\.B"):
        names(repository, pattern)


def test_range(bare: Path, repository: Repository) -> None:
    expected = [commit_of(bare, f"main~{n}")[:12] for n in (3, 2, 1, 0)]
    assert names(repository, "v0.5.10rc0..main") == expected


def test_first_parents_and_files(tmp_path: Path) -> None:
    folder = history(tmp_path / "repository", [{}, {OTHER: "x = 1\n"}, {COMMON: BROKEN}])
    start, other, broken = (commit_of(folder, f"main~{n}") for n in (2, 1, 0))
    parents = ["-p", start, "-p", broken, "-m", "merge", f"{broken}^{{tree}}"]
    merge = output(folder, "commit-tree", *parents)
    with open_repository(folder, PROJECT) as opened:
        paths = files_read(opened, [start, merge])
        assert f"python/sglang/{COMMON}" in paths
        assert f"python/sglang/{OTHER}" not in paths

        def found(**options: Any) -> list[str]:
            return names(opened, f"{start}..{merge}", **options)

        assert found() == [commit[:12] for commit in (other, broken, merge)]
        assert found(first_parent=True) == found(first_parent=True, touching=True) == [merge[:12]]
        assert broken[:12] in found(touching=True)
        assert other[:12] not in found(touching=True)
        with pytest.raises(Refused, match="holds no commits that change a file which the series"):
            names(opened, f"{start}..{other}", touching=True)


def test_files_are_unknown_where_nothing_can_be_evaluated(tmp_path: Path) -> None:
    gone = {name: "" for name in SOURCES if name.startswith("srt/")}
    folder = history(tmp_path / "repository", [gone, {}])
    with (
        open_repository(folder, PROJECT) as opened,
        pytest.raises(Refused, match="cannot be told which files --touching is about"),
    ):
        files_read(opened, ["main~1", "main"])


VERSIONS = ["0.5.2", "0.5.3rc2", "0.5.3", "0.5.12", "0.5.13rc1", "0.5.13"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (">=0.5.3rc2,<0.5.13", ["0.5.3rc2", "0.5.3", "0.5.12"]),
        (">=0.5.3,<0.5.13", ["0.5.3", "0.5.12"]),
        ("==0.5.3.*", ["0.5.3"]),
        ("sglang-kt>=0.5.12", ["sglang-kt==0.5.12", "sglang-kt==0.5.13"]),
    ],
)
def test_releases(monkeypatch: pytest.MonkeyPatch, given: str, expected: list[str]) -> None:
    monkeypatch.setattr(releases, "list_versions", lambda name: list(map(Version, VERSIONS)))
    assert [ref.name for ref in select_releases([given])] == expected


@pytest.mark.parametrize("given", ["==0.5.12", "0.5.12", "===0.5.12"])
def test_one_release_needs_no_list(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(releases, "list_versions", lambda name: [Version("0.5.12")])
    if not given.startswith("==="):
        monkeypatch.setattr(releases, "list_versions", None)
    assert [ref.revision for ref in select_releases([given])] == ["0.5.12"]


@pytest.mark.parametrize("given", ["", "x y", "sglang-kt", "a[b]>1", "a @ https://x", "--pre"])
def test_no_specifier(given: str) -> None:
    with pytest.raises(UsageError):
        list(select_releases([given]))


def test_no_release_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "list_versions", lambda name: list(map(Version, VERSIONS)))
    with pytest.raises(
        Refused, match=r"no release of sglang fits '<0\.1'; the newest are 0\.5\.3rc2"
    ):
        list(select_releases(["<0.1"]))


def test_pip_that_lists_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="pip lists no versions of sglang"):
        list(select_releases([">1"]))


def test_kinds_in_the_order_asked(bare: Path) -> None:
    with Repositories() as repositories:
        found = select(
            Selection(
                repository=str(bare),
                kinds=["trees", "revs", "releases"],
                revs=["v0.5.9", "v0.5.9"],
                releases=["0.5.9"],
                trees=["b", "a", "b"],
            ),
            repositories,
        )
    kinds = [("b", "folder"), ("a", "folder"), ("v0.5.9", "revision"), ("0.5.9", "release")]
    assert [(ref.name, ref.kind) for ref in found] == kinds


def test_folder_without_a_name() -> None:
    with pytest.raises(UsageError, match="DIR is empty"):
        list(select_folders([""]))
