from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from difflib import ndiff
from pathlib import Path, PurePosixPath

import black
import isort
import pytest
from black.report import NothingChanged

from tests.upstream import trees
from tests.upstream.program import program
from tests.upstream.releases import FORKS, RELEASES_NATIVE, RELEASES_PATCHED, copy_tree
from tests.upstream.test_statuses import expected_statuses, left_open
from tests.upstream.trees import SHAPES, Patched, sampled

VENDORED = "srt/hardware_backend/npu/batch_invariant_ops"

# Outside the vendored folder. Upstream's own change to 0.5.12.post1 deletes 28 lines.
DELETED_LINES_AT_MOST = {"0.5.12.post1": 13, "0.5.23": 20}


FEW = ("0.5.3.post2", "0.5.12.post1", "0.5.23")


@pytest.fixture
def patched(request: pytest.FixtureRequest) -> Patched:
    return trees.patched(request.param)


def patched_releases(versions: tuple[str, ...], often: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("patched", sampled(versions, often), indirect=True)


ALL = (*RELEASES_PATCHED, *RELEASES_NATIVE, *FORKS)
every_shape = patched_releases(ALL, SHAPES)
some_of_all = patched_releases(ALL, FEW)
some_shapes = patched_releases(SHAPES, FEW)
fewer_of_all = patched_releases(ALL, FEW[:2])
last_patched = patched_releases(("0.5.12.post1", "0.5.23"), FEW)


def snapshot(tree: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and mtime of every file, so that a rewrite with the same bytes shows too."""
    return {
        path.relative_to(tree).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in tree.rglob("*")
        if path.is_file()
    }


@every_shape
def test_statuses(patched: Patched) -> None:
    found = patched.apply
    assert found.statuses == applied(patched.release)
    assert found.gaps == left_open(patched.release)
    assert found.changed
    assert {path.parent.as_posix() for path in found.added} == {f"sglang/{VENDORED}"}


def applied(release: str) -> dict[str, str]:
    expected = expected_statuses(release)
    return {s: "applied" if each == "pending" else each for s, each in expected.items()}


@every_shape
def test_only_the_reported_files_differ(patched: Patched) -> None:
    differing = {
        path
        for path, (data, _) in snapshot(patched.tree).items()
        if not (patched.pristine / path).is_file() or (patched.pristine / path).read_bytes() != data
    }
    assert differing == {path.as_posix() for path in patched.written}
    assert not [path for path in patched.apply.added if (patched.pristine / path).exists()]


@every_shape
def test_written_files_compile(patched: Patched) -> None:
    for path in patched.written:
        compile((patched.tree / path).read_bytes(), str(path), "exec", dont_inherit=True)


@some_of_all
def test_second_run_touches_nothing(patched: Patched) -> None:
    before = snapshot(patched.tree)
    again = program("apply", patched.tree, "--format", "json")
    assert again.code == 0
    assert again.report["changed"] == again.report["added"] == []
    assert again.statuses == {
        seam: once_applied(seam, status) for seam, status in applied(patched.release).items()
    }
    assert snapshot(patched.tree) == before


def once_applied(seam: str, status: str) -> str:
    if status != "applied":
        return status
    # A claim that is gone leaves no trace to be recognised by.
    return "not-needed" if seam == "attention_comment" else "already"


@some_shapes
def test_nothing_is_left_to_do(patched: Patched) -> None:
    assert program("apply", patched.tree, "--check").code == 0
    assert program("diff", patched.tree).stdout == b""


@every_shape
@pytest.mark.parametrize(
    "command",
    [("git", "apply", "--whitespace=nowarn"), ("patch", "-p1", "-F0", "--silent")],
    ids=lambda command: command[0],
)
def test_diff_applied_by_others_gives_the_same_bytes(
    patched: Patched, command: tuple[str, ...], tmp_path: Path
) -> None:
    for path in patched.apply.changed:
        copy = tmp_path / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((patched.pristine / path).read_bytes())
    diff = patched.apply.report["diff"].encode()
    done = subprocess.run(command, check=False, cwd=tmp_path, input=diff, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    # Nothing on stderr either: fuzz, offsets and whitespace are reported there or on stdout.
    assert done.stdout + done.stderr == b""
    expected = {path.as_posix(): (patched.tree / path).read_bytes() for path in patched.written}
    assert {path: data for path, (data, _) in snapshot(tmp_path).items()} == expected


@some_shapes
def test_check_and_diff_foretell_the_change(patched: Patched, tmp_path: Path) -> None:
    tree = copy_tree(patched.release, tmp_path / "tree")
    before = snapshot(tree)
    check = program("apply", tree, "--check", "--diff", "--format", "json")
    assert check.code == 1
    assert program("diff", tree).stdout == check.report["diff"].encode()
    assert snapshot(tree) == before
    for key in ("changed", "added", "diff"):
        assert check.report[key] == patched.apply.report[key]
    for foretold, done in zip(
        check.report["outcomes"], patched.apply.report["outcomes"], strict=True
    ):
        pending = foretold["status"] == "pending"
        assert {**foretold, "status": "applied" if pending else foretold["status"]} == done


@some_shapes
def test_strict_is_about_withheld_seams_and_gaps(patched: Patched) -> None:
    withheld = "withheld" in patched.apply.statuses.values()
    strict = program("apply", patched.tree, "--strict")
    assert strict.code == (1 if withheld or patched.apply.gaps else 0)


def black_formats(source: str) -> str:
    try:
        return black.format_file_contents(source, fast=True, mode=black.Mode())
    except NothingChanged:
        return source


def isort_sorts(source: str) -> str:
    return isort.code(source, profile="black")


def isort_sorts_as_sglang(source: str) -> str:
    # SGLang's configuration names itself first-party, which changes the order of sections.
    return isort.code(source, profile="black", known_first_party=["sglang"])


@fewer_of_all
@pytest.mark.parametrize("formatter", [black_formats, isort_sorts, isort_sorts_as_sglang])
def test_formatters_complain_of_nothing_new(
    patched: Patched, formatter: Callable[[str], str]
) -> None:
    for path in patched.written:
        after = (patched.tree / path).read_text(encoding="utf-8")
        complaints = formatter_complaints(after, formatter)
        if complaints and path in patched.apply.changed:
            before = (patched.pristine / path).read_text(encoding="utf-8")
            complaints -= formatter_complaints(before, formatter)
        assert not complaints, f"{path}: {complaints}"


def formatter_complaints(source: str, formatter: Callable[[str], str]) -> Counter[str]:
    formatted = formatter(source)
    if formatted == source:
        return Counter()
    lines = ndiff(source.splitlines(), formatted.splitlines())
    return Counter(line for line in lines if line[:2] in {"+ ", "- "})


def deleted_lines(before: Path, after: Path) -> list[str]:
    """Return what numstat counts as deleted."""
    command = ["git", "diff", "--no-index", "--no-color", "--unified=0", str(before), str(after)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return [
        line[1:]
        for line in done.stdout.splitlines()
        if line.startswith("-") and not line.startswith("--- ")
    ]


@last_patched
def test_footprint_is_small(patched: Patched) -> None:
    deleted: dict[PurePosixPath, list[str]] = {}
    reindented: dict[PurePosixPath, list[str]] = {}
    for path in patched.apply.changed:
        assert VENDORED not in path.as_posix()
        before, after = patched.pristine / path, patched.tree / path
        deleted[path] = deleted_lines(before, after)
        kept = {line.strip() for line in after.read_text(encoding="utf-8").splitlines()}
        reindented[path] = [line for line in deleted[path] if line.strip() in kept and line.strip()]
    assert sum(map(len, deleted.values())) <= DELETED_LINES_AT_MOST[patched.release], deleted
    if patched.release in RELEASES_NATIVE:
        return
    # The guarded assignment and its warning; nothing else moves sideways.
    arguments = PurePosixPath("sglang/srt/server_args.py")
    assert [path for path, lines in reindented.items() if lines] in ([], [arguments]), reindented
    for line in reindented[arguments]:
        assert "sampling" in line.lower() or line.strip() in {"logger.warning(", ")"}, reindented
