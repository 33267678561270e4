from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.open import as_folder, open_tree
from tests.engine.package import SOURCES, build, snapshot
from tests.engine.repositories import commit, git
from tests.helpers import MemoryTree


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def sources(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*.py"))
    }


def test_a_folder_is_used_where_it_stands(tmp_path: Path, scratch: Path) -> None:
    build(tmp_path / "tree")
    (tmp_path / "link").symlink_to("tree")
    with open_tree(tmp_path / "link", PROJECT) as tree, as_folder(tree) as root:
        assert root == (tmp_path / "tree").resolve()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("inside", [".", "python", "python/sglang"])
def test_a_revision_is_written_out_and_removed(tmp_path: Path, scratch: Path, inside: str) -> None:
    folder = tmp_path / "tree"
    build(folder)
    git(folder, "init", "--quiet")
    commit(folder)
    before = snapshot(folder)
    with open_tree(folder / inside, PROJECT, "HEAD") as tree, as_folder(tree) as root:
        package = root / tree.package
        assert package.name == "sglang"
        assert sources(package) == dict(sorted(SOURCES.items()))
        assert scratch in root.parents
    assert list(scratch.iterdir()) == []
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["../out.py", "sglang/srt/../../../out.py", "ROOT/out.py"])
def test_no_name_leads_out_of_the_temporary_folder(
    tmp_path: Path, scratch: Path, name: str
) -> None:
    """What a tree object of git may hold, as no file system does."""
    path = PurePosixPath(name.replace("ROOT", tmp_path.as_posix()))
    tree: SourceTree = MemoryTree({path: b"", PurePosixPath("sglang/srt/a.py"): b""})
    with pytest.raises(Refused, match="leads out of the tree"), as_folder(tree):
        pass
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []


def test_a_file_in_the_place_of_a_folder(scratch: Path) -> None:
    tree: SourceTree = MemoryTree(
        {PurePosixPath("sglang/a.py"): b"", PurePosixPath("sglang/a.py/b.py"): b""}
    )
    with pytest.raises(Refused, match="cannot be written to a temporary folder"), as_folder(tree):
        pass
    assert list(scratch.iterdir()) == []
