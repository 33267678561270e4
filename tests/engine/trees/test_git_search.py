from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees import git_contents
from sgl_npu_patch.engine.trees.git_objects import Objects
from sgl_npu_patch.engine.trees.repository import open_repository
from tests.engine.package import build, plan_of
from tests.engine.repositories import (
    commit,
    git,
    statuses,
)

PACKAGE = PurePosixPath("python/sglang")


def test_large_file(root: Path) -> None:
    data = b"# line\n" * 3_000_000 + b"is_large = 1\n"
    (root / "python/sglang/srt/large.py").write_bytes(data)
    commit(root)
    with open_repository(root, PROJECT) as opened:
        (found,) = opened.open("HEAD").containing(b"is_large")
        assert opened.open("HEAD").read(found) == data


def test_contents_beyond_those_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_contents, "_KEPT", 100)
    assert statuses(root) == [outcome.status for outcome in plan_of(root).outcomes]


def test_each_content_is_asked_for_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    get = Objects.get

    def counted(self: Objects, ids: list[str]) -> Iterator[tuple[str, bytes]]:
        asked.update(ids)
        return get(self, ids)

    monkeypatch.setattr(Objects, "get", counted)
    (root / "python/sglang/srt/new.py").write_text("x = 1\n")
    commit(root)
    with open_repository(root, PROJECT) as opened:
        for revision in ("HEAD~1", "HEAD", "main"):
            make_plan(opened.open(revision), SERIES)
    assert {name for name, times in asked.items() if times > 1} == set()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository in which files and folders change, move, go and come again."""
    root = tmp_path_factory.mktemp("history")
    build(root)
    git(root, "init", "--quiet")
    for number, words in enumerate(["ab", "cd", "ab bc", "", "cd de", "ab"]):
        folder = root / f"python/sglang/{'ab'[number % 2]}/inner"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number // 2}.py").write_text(words)
        (root / "python/sglang/same.py").write_text(words)
        if number == 4:
            git(root, "mv", "python/sglang/b", "python/sglang/moved")
        commit(root, "--allow-empty")
        git(root, "tag", f"v{number}")
    return root


QUESTIONS = st.tuples(st.integers(0, 5), st.sampled_from([b"ab", b"bc", b"cd", b"de", b"is_npu"]))


@settings(max_examples=15, deadline=None)
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=12), kept=st.sampled_from([0, 60, 1000]))
def test_answers_do_not_depend_on_earlier_questions(
    history: Path, questions: list[tuple[int, bytes]], kept: int
) -> None:
    with (
        mock.patch.object(git_contents, "_KEPT", kept),
        open_repository(history, PROJECT) as opened,
    ):
        trees = {number: opened.open(f"v{number}") for number, _ in questions}
        for number, needle in questions:
            with open_repository(history, PROJECT) as alone:
                expected = [
                    path
                    for path in alone.open(f"v{number}").containing(b"")
                    if needle in (alone.open(f"v{number}").read(path) or b"")
                ]
            assert list(trees[number].containing(needle)) == expected
