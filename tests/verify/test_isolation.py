"""The code of a tree reaches nothing of the user's, and every check has a verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.verify import isolation
from tests.verify import hostile

ROOT = Path(__file__).parents[2]
HOSTILE, OTHER, BROKEN = (f"tests.verify.{name}" for name in ("hostile", "other", "broken"))


@pytest.fixture(autouse=True)
def this_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare(monkeypatch, tmp_path)


def prepare(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Where the throw-away homes of this test stand, so that what is left behind is seen.
    (package / "homes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(package / "homes"))
    trap = package / hostile.TRAP
    trap.mkdir()
    (trap / "kept").write_text("kept")


def asked(package: Path, *only: str) -> dict[str, Any]:
    return {
        "package": str(package),
        "base": None,
        "left_out": {},
        "native": False,
        "torch_npu": "2.10.0",
        "only": [f"hostile.{name}" for name in only],
    }


def run(package: Path, *only: str, seconds: float = 60) -> dict[str, Result]:
    results = isolation.run([HOSTILE], asked(package, *only), seconds=seconds)
    assert list((package / "homes").iterdir()) == []
    return {result.id.removeprefix("hostile."): result for result in results}


REFUSED = [f"refused_{name}" for name in hostile.ATTEMPTS]


@pytest.fixture(scope="module")
def after_each_other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Run in one process what a process survives; `user` stands for the user's home."""
    package = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepare(monkeypatch, package)
        monkeypatch.setenv("HF_TOKEN", "secret-value")
        monkeypatch.setenv("HOME", str(package / "user"))
        kept = package / hostile.TRAP / "kept"
        before = kept.stat()
        found = run(package, "prints", "exits", "interrupts", *REFUSED, "environment", "allowed")
        assert [path.name for path in kept.parent.iterdir()] == ["kept"]
        assert kept.read_text() == "kept"
        after = kept.stat()
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    return found


def test_what_reaches_beyond_the_home_is_refused(after_each_other: dict[str, Result]) -> None:
    found = {name: each for name, each in after_each_other.items() if name in {*REFUSED, "allowed"}}
    assert {name: r.message for name, r in found.items() if r.verdict != "pass"} == {}
    assert [*found] == [*REFUSED, "allowed"]


def test_the_environment_holds_nothing_of_the_user(after_each_other: dict[str, Result]) -> None:
    told = after_each_other["environment"].message
    assert "secret" not in told
    assert "/user" not in told
    assert "/homes/" in told


def test_what_is_printed_is_no_verdict(after_each_other: dict[str, Result]) -> None:
    found = after_each_other["prints"]
    assert (found.verdict, found.message) == ("fail", "it printed")
    assert after_each_other["allowed"].verdict == "pass"


@pytest.mark.parametrize("name", ["exits", "interrupts"])
def test_an_exit_is_a_failure_and_the_next_check_runs(
    after_each_other: dict[str, Result], name: str
) -> None:
    assert after_each_other[name].verdict == "fail"
    assert after_each_other["allowed"].verdict == "pass"


@pytest.mark.parametrize(
    ("name", "told"),
    [("leaves", "the process ended before it"), ("aborts", "the process died of SIGABRT")],
)
def test_a_process_that_ends_early_fails_all_that_is_left(
    tmp_path: Path, name: str, told: str
) -> None:
    results = run(tmp_path, name, "starts_a_thread")
    assert results[name].verdict == "fail"
    assert results[name].message.startswith(told)
    assert results["starts_a_thread"].verdict == "fail"
    assert results["starts_a_thread"].message == f"not reached: {told}"
    assert all(result.lost for result in results.values())


def test_a_thread_does_not_hold_up_the_end(tmp_path: Path) -> None:
    started = time.monotonic()
    assert run(tmp_path, "starts_a_thread")["starts_a_thread"].verdict == "pass"
    assert time.monotonic() - started < 30


def test_a_check_that_hangs_ends_in_time_and_others_go_on(tmp_path: Path) -> None:
    request = {**asked(tmp_path), "only": ["hostile.passes", "hostile.hangs", "other.passes"]}
    results = isolation.run([HOSTILE, OTHER], request, seconds=15)
    verdicts = {result.id: result.verdict for result in results}
    assert verdicts == {"hostile.passes": "pass", "hostile.hangs": "fail", "other.passes": "pass"}
    (hung,) = (result for result in results if result.id == "hostile.hangs")
    assert hung.message.startswith("it was not done after 15 s")
    assert "in hangs" in hung.code
    assert [result.id for result in results if result.lost] == ["hostile.hangs"]
    assert list((tmp_path / "homes").iterdir()) == []


def test_a_group_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    (result,) = isolation.run([BROKEN], asked(tmp_path), seconds=60)
    assert (result.id, result.verdict) == (f"{BROKEN}.runs", "fail")
    assert "no torch here" in result.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_folder(tmp_path: Path, number: int) -> None:
    program = (
        "import json, signal, sys, tempfile\n"
        "from sgl_npu_patch.verify import isolation\n"
        "def stop(*_): raise SystemExit(1)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "tempfile.tempdir = sys.argv[1]\n"
        f"isolation.run([{HOSTILE!r}] * 3, json.loads(sys.argv[2]), seconds=100)\n"
    )
    request = json.dumps(asked(tmp_path, "hangs"))
    command = [sys.executable, "-c", program, str(tmp_path / "homes"), request]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not children(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        started = children(process.pid)
        assert started
        os.kill(process.pid, number)
        process.wait(timeout=30)
    assert process.returncode != 0
    assert list((tmp_path / "homes").iterdir()) == []
    assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists()]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for file in found for each in file.read_text().split()]


def test_checks_are_chosen_by_seam_as_well(tmp_path: Path) -> None:
    request = {**asked(tmp_path), "only": ["other"]}
    (result,) = isolation.run([OTHER], request, seconds=60)
    assert (result.id, result.verdict, result.seam) == ("other.passes", "pass", "other")
    assert isolation.run([OTHER], {**asked(tmp_path), "only": ["sampler"]}, seconds=60) == []
