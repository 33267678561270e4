from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.engine.trees.revision import GitTree
from tests.engine.package import ARGUMENTS, SOURCES, build, plan_of, snapshot
from tests.engine.repositories import (
    commit,
    git,
    output,
    partial_clone,
    refused,
    statuses,
)

PACKAGE = PurePosixPath("python/sglang")


def test_folder_that_the_revision_lacks(root: Path) -> None:
    (root / "later").mkdir()
    assert "not a tree of SGLang" in refused(root / "later")


def test_no_package(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "empty")
    assert f"{tmp_path} at HEAD: not a tree of SGLang: looked for" in refused(tmp_path)


def test_every_name_of_a_commit(root: Path, repository: Repository) -> None:
    first = output(root, "rev-parse", "HEAD")
    git(root, "tag", "light")
    git(root, "tag", "--annotate", "--message", "x", "heavy")
    git(root, "tag", "--annotate", "--message", "x", "of-tag", "heavy")
    git(root, "branch", "od\u00e9/d")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "second")
    names = (
        "light",
        "heavy",
        "of-tag",
        "od\u00e9/d",
        "refs/tags/light",
        first,
        first[:8],
        "HEAD~1",
    )
    for name in (
        *names,
        "main^",
        "@{1}",
        "HEAD@{1}",
        "@~",
        "HEAD~1^{/next}",
        "light^{}",
        f"v-1-g{first[:7]}",
    ):
        assert repository.resolve(name) == first, name
    assert repository.resolve("main") == output(root, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "no-such",
        "-h",
        "--all",
        "--upload-pack=touch ran",
        "--output=ran",
        "--git-dir=/",
        "--",
        "main..main",
        "main...main",
        "^main",
        "main main",
        "main:",
        "main:python",
        ":python",
        "main^{tree}",
        "main^@",
        "main^!",
        "@{u}",
        "HEAD@{99}",
        "main\nmain",
        "main\0",
        "$(touch ran)",
        "`touch ran`",
        "; touch ran",
        "../repository",
        "\udcff",
        "f" * 40,
        "f" * 5000,
    ],
)
def test_what_names_no_commit(root: Path, repository: Repository, name: str) -> None:
    before = snapshot(root)
    with pytest.raises(Refused, match=r"cannot name a revision|is no revision of this repository"):
        repository.open(name)
    assert snapshot(root) == before


def test_object_that_is_no_commit(root: Path, repository: Repository) -> None:
    git(root, "tag", "blob", f"HEAD:python/sglang/{ARGUMENTS}")
    git(root, "tag", "tree", "HEAD:python")
    for name in ("blob", "tree", output(root, "rev-parse", "tree")):
        with pytest.raises(Refused, match="is no revision"):
            repository.open(name)


def test_ambiguous_short_id(root: Path, repository: Repository) -> None:
    commits = "".join(
        f"commit refs/heads/many\ncommitter t <t@localhost> {n} +0000\ndata 0\n\n"
        for n in range(600)
    )
    output(root, "fast-import", "--quiet", given=commits.encode())
    ids = output(root, "rev-list", "many").split()
    short, times = Counter(each[:4] for each in ids).most_common(1)[0]
    assert times > 1
    with pytest.raises(Refused, match=r"is ambiguous.*more digits"):
        repository.resolve(short)


def test_ambiguous_name(root: Path, repository: Repository) -> None:
    git(root, "tag", "main")
    git(root, "config", "core.warnAmbiguousRefs", "false")
    with pytest.raises(Refused, match=r"'main' is ambiguous.*refs/heads/NAME"):
        repository.resolve("main")
    assert repository.resolve("refs/heads/main") == repository.resolve("tags/main")


@pytest.mark.parametrize("name", ["bare", "worktree", "sub"])
def test_kinds_of_repositories(root: Path, name: str) -> None:
    folder = root.parent / name
    if name == "bare":
        git(root.parent, "clone", "--quiet", "--bare", str(root), str(folder))
    elif name == "worktree":
        git(root, "worktree", "add", "--quiet", "--detach", str(folder))
    else:
        git(root.parent, "init", "--quiet", "outer")
        git(root.parent / "outer", "submodule", "--quiet", "add", str(root), "sub")
        folder = root.parent / "outer/sub"
    assert statuses(folder) == statuses(root)


def test_shallow_clone(root: Path) -> None:
    git(root, "commit", "--quiet", "--allow-empty", "--message", "second")
    git(root.parent, "clone", "--quiet", "--depth=1", root.as_uri(), "shallow")
    assert statuses(root.parent / "shallow") == statuses(root)
    assert "is no revision of this repository" in refused(root.parent / "shallow", "HEAD~1")


def test_sha256(tmp_path: Path) -> None:
    build(tmp_path / "repository")
    git(tmp_path / "repository", "init", "--quiet", "--object-format=sha256")
    commit(tmp_path / "repository")
    expected = [outcome.status for outcome in plan_of(tmp_path / "repository").outcomes]
    assert statuses(tmp_path / "repository") == expected
    assert statuses(partial_clone(tmp_path / "repository")) == expected


def test_replaced_object(root: Path, repository: Repository) -> None:
    other = output(root, "hash-object", "-w", "--stdin", given=b"replaced\n")
    git(root, "replace", f"HEAD:{PACKAGE / ARGUMENTS}", other)
    tree = repository.open("HEAD")
    data = tree.read(PACKAGE / ARGUMENTS) or b""
    blob = b"blob %d\0%b" % (len(data), data)
    assert hashlib.sha1(blob, usedforsecurity=False).hexdigest() == tree.blob(PACKAGE / ARGUMENTS)


def test_goes_on_after_a_damaged_revision(root: Path) -> None:
    (root / "python/sglang/srt/bad.py").write_text("x = 1\n")
    commit(root)
    blob = output(root, "rev-parse", "HEAD:python/sglang/srt/bad.py")
    (root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with open_repository(root, PROJECT) as opened:
        with pytest.raises(Refused, match=f"object {blob} cannot be read"):
            make_plan(opened.open("HEAD"), SERIES)
        plan = make_plan(opened.open("HEAD~1"), SERIES)
    assert [outcome.status for outcome in plan.outcomes] == statuses(root, "HEAD~1")


def test_nothing_of_the_repository_changes(root: Path) -> None:
    (root / "python/sglang/new.py").touch()
    (root / "python/sglang" / ARGUMENTS).write_text("changed")
    git(root, "add", f"python/sglang/{ARGUMENTS}")
    os.utime(root / "python/sglang/version.py", (0, 0))
    before = snapshot(root)
    statuses(root)
    assert snapshot(root) == before


def test_variables_of_a_hook_are_dropped(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    other = tmp_path / "other"
    expected = statuses(root)
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / ".git/objects",
        "GIT_NAMESPACE": "x",
        "GIT_PREFIX": "sub/",
    }.items():
        monkeypatch.setenv(name, str(value))
    assert statuses(root) == expected


def test_what_is_no_repository(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert "not a git repository" in refused(tmp_path / "folder")
    assert "is not a folder; --rev needs a git repository" in refused(tmp_path / "file")
    assert "does not exist; --rev needs a git repository" in refused(tmp_path / "none")


def test_git_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    assert "git cannot be run" in refused(root)


def test_process_ends_with_the_repository(root: Path) -> None:
    with open_repository(root, PROJECT) as opened:
        tree: GitTree = opened.open("HEAD")
        process = opened._objects._process
        assert process is not None
        assert process.poll() is None
    assert process.returncode == 0
    assert tree.read(PACKAGE / "version.py") == SOURCES["version.py"].encode()
    opened._objects.close()
