from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.package import CHANGE, build, run, snapshot
from tests.engine.test_plan import EXPECTED


def test_shows_what_apply_would_do(tmp_path: Path) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    done = run("status", tmp_path, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    assert done.statuses == EXPECTED
    assert done.stdout == run("apply", tmp_path, "--check", "--format", "json").stdout
    assert snapshot(tmp_path) == before


def test_text_names_files_and_lines(tmp_path: Path) -> None:
    build(tmp_path)
    said = run("status", tmp_path).stdout.decode()
    assert f"would {CHANGE}" in said
    assert "python/sglang/srt/server_args.py:5" in said
    assert "batch_invariant_ops.py:16 and 2 more" in said


def test_long_paths_stay_in_one_piece(tmp_path: Path) -> None:
    root = tmp_path / ("long " * 20) / ("er" * 60)
    build(root)
    said = run("status", root).stdout.decode().splitlines()
    assert said[0].startswith(f"SGLang 0.0.1 in {root}: ")


def test_conflict_exits_three_and_says_what_to_do(tmp_path: Path) -> None:
    build(tmp_path, common="def is_npu():\n    return False\n")
    done = run("status", tmp_path)
    assert done.code == 3
    said = done.stdout.decode()
    for label in ("sought", "expected", "found", "where", "next"):
        assert f"\n  {label} " in said
    assert max(map(len, said[said.index("conflict in") :].splitlines())) <= 100


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 0)])
def test_pending_change_is_no_failure(tmp_path: Path, strict: list[str], code: int) -> None:
    build(tmp_path)
    assert run("status", tmp_path, *strict).code == code


def test_selection(tmp_path: Path) -> None:
    build(tmp_path)
    done = run("status", tmp_path, "--format", "json", "--only", "npu_ops")
    assert done.statuses == {"npu_ops": "pending"}


def test_version_may_be_unknown(tmp_path: Path) -> None:
    build(tmp_path, version=None)
    assert b"SGLang of unknown version" in run("status", tmp_path).stdout
    assert run("status", tmp_path, "--format", "json").report["tree"]["version"] is None
