from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from tests.engine.package import build
from tests.engine.repositories import commit, git


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = (tmp_path / "repository").resolve()
    build(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder)
    return folder


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    with open_repository(root, PROJECT) as opened:
        yield opened
