from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import store as cache
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.store import Memory, Store
from sgl_npu_patch.engine.trees.directory import SourceTree, open_directory
from sgl_npu_patch.engine.trees.git_contents import Contents
from sgl_npu_patch.engine.trees.git_search import Search
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.engine.trees.revision import GitTree
from sgl_npu_patch.matrix.evaluate import MADE_OF
from tests.engine.package import ARGUMENTS, COMMON, SOURCES, build
from tests.engine.repositories import commit, git

PACKAGE = PurePosixPath("python/sglang")
ASKED: list[str] = []


def judge(tree: SourceTree) -> bytes:
    """Return what a plan says, and record that it was asked."""
    ASKED.append(tree.label)
    plan = make_plan(tree, SERIES)
    return repr([plan.outcomes, plan.changes.changed, plan.changes.added]).encode()


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    ASKED.clear()
    return Memory(Store(tmp_path / "cache"), "all", MADE_OF)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    build(folder)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    with open_repository(root, PROJECT) as opened:
        yield opened


def change(root: Path, name: str, data: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
    commit(root)


def test_second_time_nothing_is_read(
    root: Path, repository: Repository, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = memory.answer(repository.open("HEAD"), judge).data
    assert first == judge(repository.open("HEAD"))
    change(root, "README.md", b"new")
    ASKED.clear()
    monkeypatch.setattr(Contents, "read", None)
    monkeypatch.setattr(Search, "holding", None)
    with open_repository(root, PROJECT) as again:
        assert memory.answer(again.open("HEAD"), judge).data == first
    assert ASKED == []


@pytest.mark.parametrize(
    ("name", "data", "asked"),
    [
        ("python/sglang/srt/other.py", b"x = 1\n", False),
        ("python/sglang/srt/other.py", b"get_dispatch_device_backend()\n", True),
        ("python/sglang/srt/data.json", b"get_dispatch_device_backend()\n", False),
        ("python/sglang/srt/other.py", b"enable_deterministic_inference\n", True),
        ("python/sglang/version.py", b'__version__ = "0.0.2"\n', False),
        (f"python/sglang/{COMMON}", SOURCES[COMMON].encode() + b"# new\n", True),
        ("build/lib/sglang/srt/x.py", b"", True),
    ],
)
def test_what_matters_is_judged_anew(
    root: Path, repository: Repository, memory: Memory, name: str, data: bytes, asked: bool
) -> None:
    memory.answer(repository.open("HEAD"), judge)
    ASKED.clear()
    change(root, name, data)
    answer = memory.answer(repository.open("HEAD"), judge).data
    assert len(ASKED) == asked
    assert answer == judge(repository.open("HEAD"))


def test_file_that_was_missing_is_asked_about(
    root: Path, repository: Repository, memory: Memory
) -> None:
    before = memory.answer(repository.open("HEAD"), judge).data
    vendored = "python/sglang/srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"
    change(root, vendored, b"foreign\n")
    assert memory.answer(repository.open("HEAD"), judge).data != before


def test_directories_are_known_by_content(
    root: Path, repository: Repository, memory: Memory
) -> None:
    answer = memory.answer(open_directory(root, PROJECT), judge).data
    (root / "python/sglang/srt/other.py").write_bytes(b"x = 1\n")
    assert memory.answer(open_directory(root, PROJECT), judge).data == answer
    assert len(ASKED) == 1
    (root / "python/sglang" / ARGUMENTS).write_bytes(b"enable_deterministic_inference\n")
    assert memory.answer(open_directory(root, PROJECT), judge).data != answer


def test_question_and_tool_are_part_of_the_key(
    repository: Repository, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = repository.open("HEAD")
    memory.answer(tree, judge)
    Memory(memory.store, "other", MADE_OF).answer(tree, judge)
    assert len(ASKED) == 2
    monkeypatch.setattr(cache, "fingerprint", lambda made_of: "another version")
    memory.answer(tree, judge)
    assert len(ASKED) == 3


@pytest.mark.parametrize(
    ("folder", "name", "counts"),
    [
        ("codemods", "sampler.py", True),
        ("engine", "view.py", True),
        ("npu_ops", "npu_ops.py", True),
        ("reports", "codec.py", True),
        ("templates", "new.tmpl", True),
        ("templates", "notes.txt", False),
    ],
)
def test_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, counts: bool
) -> None:
    for each in ("codemods", "engine", "npu_ops", "templates", "reports"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "__init__.py").touch()
    monkeypatch.setattr(cache, "_folder", lambda name: tmp_path / name.rpartition(".")[2])
    before = cache.fingerprint.__wrapped__(MADE_OF)
    assert before == cache.fingerprint.__wrapped__(MADE_OF)
    (tmp_path / folder / name).write_text("new")
    assert (cache.fingerprint.__wrapped__(MADE_OF) != before) == counts


def test_fingerprint_of_this_tool_is_stable() -> None:
    assert len(cache.fingerprint(("engine",))) == 64


def test_refusal_is_not_remembered(root: Path, memory: Memory) -> None:
    build(root, server_args="", sampler="", batch_invariant_ops="")
    commit(root)
    with open_repository(root, PROJECT) as opened:
        for _ in range(2):
            with pytest.raises(Refused, match="this tree: this SGLang has no deterministic"):
                memory.answer(opened.open("HEAD"), judge)
    assert len(ASKED) == 2


@settings(max_examples=30)
@given(data=st.binary(), cut=st.integers(0, 200), flip=st.integers(0, 1000))
def test_damaged_file_counts_as_missing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int, flip: int
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    store.put("key", data)
    assert store.get("key") == data
    (path,) = (path for path in store.folder.rglob("*") if path.is_file())
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert store.get("key") in ((None,) if cut < len(whole) else (data,))
    place = flip % len(whole)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert store.get("key") is None
    store.put("key", data)
    assert store.get("key") == data


def test_damaged_cache_changes_no_answer(
    root: Path, repository: Repository, memory: Memory
) -> None:
    answer = memory.answer(repository.open("HEAD"), judge).data
    for path in memory.store.folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    change(root, "python/sglang/srt/other.py", b"x = 1\n")
    assert memory.answer(repository.open("HEAD"), judge).data == answer
    assert len(ASKED) == 2


@pytest.mark.parametrize("folder", ["file/below", "/proc/none"])
def test_folder_that_cannot_be_written(tmp_path: Path, repository: Repository, folder: str) -> None:
    (tmp_path / "file").touch()
    memory = Memory(Store(tmp_path / folder), "all", MADE_OF)
    tree: GitTree = repository.open("HEAD")
    assert memory.answer(tree, judge).data == judge(tree)
    memory.store.trim()


def test_oldest_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", limit=1000)
    store.trim()
    for number in range(20):
        store.put(f"{number:02}", b"x" * 100)
        os.utime(store.folder / f"{number:02}/{number:02}", (number, number))
    store.keep("00")
    left_over = store.folder / "00/.left-over"
    left_over.write_bytes(b"x")
    os.utime(left_over, (time.time() - 7200,) * 2)
    store.trim()
    kept = [number for number in range(20) if store.get(f"{number:02}") is not None]
    assert kept == [0, *range(15, 20)]
    assert not left_over.exists()


def write_often(folder: Path) -> int:
    store = Store(folder, limit=2000)
    wrong = 0
    for number in range(200):
        key = f"{number % 7:02}"
        store.put(key, key.encode() * 100)
        wrong += store.get(key) not in (None, key.encode() * 100)
        if number % 20 == 0:
            store.trim()
    return wrong


def test_many_processes_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3) as pool:
        assert list(pool.map(write_often, [tmp_path / "cache"] * 3)) == [0, 0, 0]
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
