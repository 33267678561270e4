from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.package import build, contents, run, snapshot
from tests.upstream.program import ROOT

# Sends a signal from inside, at the moment that the test is about. A process that was started in
# the background ignores SIGINT, and so do those that it starts.
INTERRUPTED = """\
import os, signal, sys
from importlib import import_module
from sgl_npu_patch import cli

signal.signal(signal.SIGINT, signal.default_int_handler)
number, owner, name, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
del sys.argv[1:5]
module, _, inner = owner.partition(":")
place = import_module(module)
place = getattr(place, inner) if inner else place
real = getattr(place, name)

def signalled(*args, **kwargs):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), number)
    return real(*args, **kwargs)

setattr(place, name, signalled)
cli.main()
"""

PLANNING = ("sgl_npu_patch.engine.plan", "make_plan", "1")
BEFORE = [
    PLANNING,
    ("sgl_npu_patch.engine.plan", "_judge", "5"),
    ("sgl_npu_patch.engine.commit", "commit", "1"),
]
GUARDED = [
    ("tempfile", "mkstemp", "2"),
    ("pathlib:Path", "replace", "1"),
    ("pathlib:Path", "replace", "5"),
    ("sgl_npu_patch.engine.plan", "prove", "1"),
]
AFTER = ("sgl_npu_patch.reports.plan_text", "render", "1")


def interrupt(tree: Path, number: int, moment: tuple[str, str, str]) -> tuple[int, str]:
    arguments = [str(int(number)), *moment, "apply", str(tree)]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("moment", [*BEFORE, *GUARDED], ids=lambda moment: "-".join(moment[1:]))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_nothing_is_left_half_written(
    tmp_path: Path, number: signal.Signals, moment: tuple[str, str, str]
) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    code, said = interrupt(tmp_path, number, moment)
    assert code == 128 + number
    assert said == (
        f"sgl-npu-patch: interrupted by signal {int(number)}; no file is half written\n"
    )
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("moment", GUARDED, ids=lambda moment: "-".join(moment[1:]))
def test_hang_up_while_writing(tmp_path: Path, moment: tuple[str, str, str]) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    code, said = interrupt(tmp_path, signal.SIGHUP, moment)
    assert (code, said.count("\n")) == (128 + signal.SIGHUP, 1)
    assert snapshot(tmp_path) == before


def test_interrupt_after_the_commit_leaves_the_whole_change(tmp_path: Path) -> None:
    for name in ("whole", "interrupted"):
        build(tmp_path / name)
    assert run("apply", tmp_path / "whole").code == 0
    code, said = interrupt(tmp_path / "interrupted", signal.SIGTERM, AFTER)
    assert code == 128 + signal.SIGTERM
    assert "nothing was changed" not in said
    assert contents(tmp_path / "interrupted") == contents(tmp_path / "whole")


def test_run_after_an_interrupt_succeeds(tmp_path: Path) -> None:
    build(tmp_path)
    interrupt(tmp_path, signal.SIGINT, GUARDED[2])
    assert run("apply", tmp_path).code == 0
