from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from sgl_npu_patch import fetch
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.fetch import cached_release
from sgl_npu_patch.matrix.content import Options
from sgl_npu_patch.matrix.evaluate import Evaluator
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.trees import TreeRef
from tests.engine.package import build

ASKED: list[str] = []


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each release by the small package."""

    def lay_out(release: str, folder: Path) -> None:
        ASKED.append(release)
        build(folder, layout="sglang")

    ASKED.clear()
    monkeypatch.setattr(fetch, "fetch", lay_out)


def test_each_is_fetched_once(tmp_path: Path) -> None:
    for _ in range(2):
        cached_release("sglang", Version("0.5.9"), tmp_path / "new")
        cached_release("other", Version("1.0"), tmp_path / "new")
    assert ASKED == ["0.5.9", "other==1.0"]
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["other-1.0", "sglang-0.5.9"]


def test_other_process_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(release: str, folder: Path) -> None:
        build(tmp_path / "sglang-1.0", layout="sglang")
        build(folder, layout="sglang")

    monkeypatch.setattr(fetch, "fetch", slow)
    assert cached_release("sglang", Version("1.0"), tmp_path) == tmp_path / "sglang-1.0"
    assert [path.name for path in tmp_path.iterdir()] == ["sglang-1.0"]


def test_something_else_stands_there(tmp_path: Path) -> None:
    (tmp_path / "sglang-1.0").touch()
    with pytest.raises(Refused, match="something else stands there"):
        cached_release("sglang", Version("1.0"), tmp_path)
    with pytest.raises(Refused, match="cannot be written"):
        cached_release("sglang", Version("1.0"), tmp_path / "sglang-1.0")


@pytest.mark.parametrize("kept", [True, False])
def test_place_of_a_release_is_not_reported(tmp_path: Path, kept: bool) -> None:
    ref = TreeRef("0.5.9", "release", "sglang", "0.5.9")
    with Repositories() as repositories:
        document = Evaluator(Options(cache=kept), repositories).evaluate(ref).document
    assert document["tree"]["path"] == "sglang==0.5.9"
    assert (tmp_path / "cache/releases/sglang-0.5.9").exists() == kept
    assert str(tmp_path) not in str(document)
