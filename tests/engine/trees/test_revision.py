from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.engine.trees.version import package_version
from tests.engine.package import ARGUMENTS, SOURCES, build, plan_of
from tests.engine.repositories import (
    commit,
    fake_program,
    git,
    output,
    refused,
    statuses,
)

PACKAGE = PurePosixPath("python/sglang")


def test_reads_as_a_directory_does(root: Path) -> None:
    for odd in (".hidden.py", ".folder/x.py", "__pycache__/x.py", "data.txt", "srt/new\n\u00e9.py"):
        target = root / "python/sglang" / odd
        target.parent.mkdir(exist_ok=True)
        target.write_text("def is_npu")
    revision = commit(root)
    directory = open_directory(root, PROJECT)
    with open_repository(root, PROJECT) as opened:
        tree = opened.open("main")
        assert (tree.package, tree.revision, tree.label) == (PACKAGE, revision, str(root))
        for needle in (b"def is_npu", b"import", b"nothing at all"):
            assert tree.containing(needle) == directory.containing(needle)
        arguments = PACKAGE / ARGUMENTS
        assert tree.containing(b"is_npu", [arguments]) == ()
        assert tree.containing(b"logging", [arguments]) == (arguments,)
        for path in ("python/sglang/no.py", "no/such.py", "python/sglang/version.py/x.py"):
            assert tree.read(PurePosixPath(path)) is None
        assert tree.read(arguments) == directory.read(arguments)
        assert tree.blob(arguments) == output(root, "rev-parse", f"HEAD:{arguments}")
        assert package_version(tree) == "0.0.1"
        with pytest.raises(Refused, match="not a regular file"):
            tree.read(PACKAGE)
        plan = make_plan(tree, SERIES)
    assert plan.outcomes == plan_of(root).outcomes
    assert plan.changes == plan_of(root).changes


def test_uncommitted_changes_are_not_seen(root: Path, repository: Repository) -> None:
    (root / "python/sglang" / ARGUMENTS).write_text("changed")
    git(root, "add", "--all")
    tree = repository.open("HEAD")
    assert tree.read(PACKAGE / ARGUMENTS) == SOURCES[ARGUMENTS].encode()


@pytest.mark.parametrize("layout", ["python/sglang", "sglang", "."])
@pytest.mark.parametrize("inside", ["", "in ner/\u00e9"])
def test_layouts(tmp_path: Path, layout: str, inside: str) -> None:
    build(tmp_path / inside, layout)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    with open_repository(tmp_path / inside, PROJECT) as opened:
        tree = opened.open("HEAD")
        assert tree.package == PurePosixPath(layout)
        assert opened.prefix == PurePosixPath(inside)
        plan = make_plan(tree, SERIES)
    assert plan.outcomes == plan_of(tmp_path / inside).outcomes


@pytest.mark.parametrize(
    "inner", ["sglang/srt", "python/build/lib/sglang/srt", "build/lib.x/sglang/srt"]
)
def test_copies(root: Path, inner: str) -> None:
    (root / inner).mkdir(parents=True)
    (root / inner / "x.py").touch()
    commit(root)
    assert open_directory(root, PROJECT).copies() == (PurePosixPath(inner).parent,)
    (root / "build").mkdir(exist_ok=True)
    (root / "build/liblink").symlink_to("../python")
    commit(root)
    with open_repository(root, PROJECT) as opened:
        assert opened.open("HEAD").copies() == (PurePosixPath(inner).parent,)


@pytest.mark.parametrize("name", ["python", "python/sglang", "python/sglang/srt"])
@pytest.mark.parametrize("kind", ["120000", "160000"])
def test_link_or_submodule_above_the_package(root: Path, name: str, kind: str) -> None:
    git(root, "rm", "-r", "--quiet", "--cached", name)
    found = output(root, "rev-parse", "HEAD" if kind == "160000" else f"HEAD:{PACKAGE}/version.py")
    git(root, "update-index", "--add", "--cacheinfo", f"{kind},{found},{name}")
    git(root, "commit", "--quiet", "--message", "next")
    said = refused(root)
    if name.endswith("srt"):
        assert "not a tree of SGLang" in said
    else:
        what = "symbolic link" if kind == "120000" else "submodule"
        assert f"{name} is a {what} in this revision" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("python/sglang/srt/x.py", "symbolic link"),
        ("python/sglang/version.py", "symbolic link"),
        ("python/sglang/srt/folder", ""),
        ("python/sglang/.x.py", ""),
        ("elsewhere.py", ""),
    ],
)
def test_link(root: Path, name: str, said: str) -> None:
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to("__init__.py")
    commit(root)
    if said:
        assert f"{name} is a {said} in this revision, which is not followed" in refused(root)
    else:
        assert statuses(root) == statuses(root, "HEAD~1")


@pytest.mark.parametrize(("name", "read"), [("python/sglang/sub", True), ("3rdparty/sub", False)])
def test_submodule(root: Path, name: str, read: bool) -> None:
    head = output(root, "rev-parse", "HEAD")
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},{name}")
    git(root, "commit", "--quiet", "--message", "next")
    if read:
        assert f"{name} is a submodule in this revision" in refused(root)
    else:
        assert statuses(root) == statuses(root, "HEAD~1")


def test_bytes_are_those_stored(root: Path, tmp_path: Path) -> None:
    program = fake_program(tmp_path)
    data = b"# $Id$ $Format:%H$\r\n\xef\xbb\xbf\xff\n\r"
    target = root / "python/sglang/srt/odd.py"
    target.write_bytes(data)
    commit(root)
    (root / ".gitattributes").write_text(
        "*.py text eol=crlf ident export-subst filter=x diff=x working-tree-encoding=UTF-16\n"
    )
    git(root, "add", ".gitattributes")
    git(root, "commit", "--quiet", "--message", "next")
    for name in ("filter.x.smudge", "filter.x.clean", "filter.x.process", "diff.x.textconv"):
        git(root, "config", name, str(program))
    git(root, "config", "core.autocrlf", "true")
    with open_repository(root, PROJECT) as opened:
        tree = opened.open("HEAD")
        assert tree.read(PACKAGE / "srt/odd.py") == data
        assert tree.containing(b"\xff\n\r") == (PACKAGE / "srt/odd.py",)
    assert not (tmp_path / "ran").exists()


def test_path_that_is_not_utf8(root: Path) -> None:
    blob = output(root, "hash-object", "-w", "--stdin", given=b"is_npu = 1\n")
    listed = output(root, "ls-tree", "HEAD:python/sglang/srt").encode()
    odd = listed + f"\n100644 blob {blob}\t".encode() + b"\xff\xfe.py\0"
    tree = output(root, "mktree", "-z", given=odd.replace(b"\n", b"\0"))
    git(root, "rm", "-r", "--quiet", "--cached", "python/sglang/srt")
    git(root, "read-tree", "--prefix=python/sglang/srt", tree)
    git(root, "commit", "--quiet", "--message", "next")
    with open_repository(root, PROJECT) as opened:
        found = opened.open("HEAD").containing(b"is_npu = 1")
        assert [os.fsencode(path.name) for path in found] == [b"\xff\xfe.py"]
        assert opened.open("HEAD").read(found[0]) == b"is_npu = 1\n"
    assert statuses(root) == statuses(root, "HEAD~1")
