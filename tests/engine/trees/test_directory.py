from __future__ import annotations

import os
import socket
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.engine.package import build

LAYOUTS = {"": "python/sglang", "python": "sglang", "python/sglang": "."}


@pytest.mark.parametrize(("below", "package"), LAYOUTS.items(), ids=["root", "python", "package"])
def test_package_is_found_in_every_layout(tmp_path: Path, below: str, package: str) -> None:
    build(tmp_path)
    tree = open_directory(tmp_path / below, PROJECT)
    assert tree.package == PurePosixPath(package)
    assert tree.read(tree.package / "srt/server_args.py")
    found = tree.containing(b"def is_npu")
    assert found == (tree.package / "srt/utils/common.py",)


def test_repository_wins_over_a_folder_of_the_same_name(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "sglang").mkdir()
    assert open_directory(tmp_path, PROJECT).package == PurePosixPath("python/sglang")


@pytest.mark.parametrize("name", ["__init__.py", "srt"])
def test_folder_without_the_marks_of_the_package(tmp_path: Path, name: str) -> None:
    package = build(tmp_path)
    (package / name).rename(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="not a tree of SGLang"):
        open_directory(tmp_path, PROJECT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "does not exist"),
        ("file", "is not a directory"),
        ("loop", "does not exist"),
        ("x" * 300, "File name too long"),
        ("empty", "not a tree of SGLang"),
    ],
)
def test_what_is_no_tree(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Refused, match=said):
        open_directory(tmp_path / name, PROJECT)


def test_missing_file_is_none(tmp_path: Path) -> None:
    build(tmp_path)
    tree = open_directory(tmp_path, PROJECT)
    assert tree.read(PurePosixPath("python/sglang/nothing.py")) is None
    assert tree.read(PurePosixPath("python/sglang/version.py/inner.py")) is None


def test_each_file_is_read_once(tmp_path: Path) -> None:
    package = build(tmp_path)
    tree = open_directory(tmp_path, PROJECT)
    before = tree.containing(b"is_npu")
    (package / "srt/utils/common.py").write_bytes(b"")
    assert tree.containing(b"is_npu") == before


def test_search_is_limited_to_the_given_files(tmp_path: Path) -> None:
    build(tmp_path)
    tree = open_directory(tmp_path, PROJECT)
    some = tree.package / "srt/layers/sampler.py"
    assert tree.containing(b"def ", [some]) == (some,)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.mkdir(), id="folder named x.py"),
        pytest.param(
            lambda path: path.with_name(".#x.py").symlink_to("me@here.1"), id="editor's lock"
        ),
        pytest.param(
            lambda path: path.with_name(".x.py").write_bytes(b"def is_npu"), id="hidden file"
        ),
        pytest.param(
            lambda path: path.with_name("loop").symlink_to(".."), id="circular folder link"
        ),
        pytest.param(lambda path: path.with_suffix(".txt").touch(), id="no Python"),
    ],
)
def test_what_no_import_reaches_is_passed_over(tmp_path: Path, make: object) -> None:
    package = build(tmp_path)
    assert callable(make)
    make(package / "srt/x.py")
    for hidden in ("srt/.checkpoints", "srt/__pycache__"):
        (package / hidden).mkdir()
        (package / hidden / "copy.py").write_bytes(b"def is_npu(): ...")
    tree = open_directory(tmp_path, PROJECT)
    assert tree.containing(b"def is_npu") == (tree.package / "srt/utils/common.py",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(os.mkfifo, "is not a regular file", id="named pipe"),
        pytest.param(
            lambda path: path.symlink_to("nowhere"), "a symbolic link that leads nowhere", id="link"
        ),
        pytest.param(lambda path: path.symlink_to(path.name), "cannot be read", id="circular link"),
        pytest.param(
            lambda path: path.symlink_to(path.parent), "is not a regular file", id="link to folder"
        ),
        pytest.param(
            lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
            "cannot be read",
            id="socket",
            marks=pytest.mark.filterwarnings("ignore::ResourceWarning"),
        ),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, make: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = build(tmp_path)
    assert callable(make)
    monkeypatch.chdir(package / "srt")  # a socket's path must be short
    make(Path("x.py") if said == "cannot be read" else package / "srt/x.py")
    with pytest.raises(Refused, match=rf"srt/x\.py: .*{said}"):
        open_directory(tmp_path, PROJECT).containing(b"is_npu")


@pytest.mark.parametrize(
    ("layout", "copy", "seen"),
    [
        ("sglang", "build/lib/sglang", True),
        ("sglang", "build/lib.linux-x86_64-cpython-311/sglang", True),
        ("python/sglang", "python/build/lib/sglang", True),
        ("python/sglang", "build/lib/sglang", True),
        ("python/sglang", "sglang", True),
        ("sglang", "build/bdist/sglang", False),
        (".", "build/lib/sglang", False),
    ],
)
def test_other_copies_of_the_package_are_named(
    tmp_path: Path, layout: str, copy: str, seen: bool
) -> None:
    build(tmp_path, layout)
    build(tmp_path, copy)
    tree = open_directory(tmp_path, PROJECT)
    assert tree.package == PurePosixPath(layout)
    assert tree.copies() == ((PurePosixPath(copy),) if seen else ())


def test_what_only_looks_like_a_copy_is_not_named(tmp_path: Path) -> None:
    build(tmp_path, "sglang")
    (tmp_path / "build/lib/sglang").mkdir(parents=True)
    (tmp_path / "python/sglang").mkdir(parents=True)
    assert open_directory(tmp_path, PROJECT).copies() == ()
