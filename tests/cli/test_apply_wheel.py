from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.cli.test_apply import written
from tests.engine.package import (
    ADDED,
    ARGUMENTS,
    CHANGED,
    CHANGED_AND_ADDED,
    COMMON,
    SOURCES,
    run,
    snapshot,
)
from tests.engine.test_plan import EXPECTED
from tests.engine.wheels import SUFFIX, VERSION, build_wheel

NAME = f"sglang-{VERSION}+{SUFFIX}-py3-none-any.whl"


def test_report(tmp_path: Path) -> None:
    wheel, out = build_wheel(tmp_path), tmp_path / "new" / "folder"
    done = run("apply", "--wheel", wheel, out, "--format", "json", "--diff")
    assert (done.code, done.stderr) == (0, "")
    assert done.statuses == written(EXPECTED)
    assert done.report["changed"] == [f"sglang/{name}" for name in CHANGED]
    assert done.report["added"] == [f"sglang/{name}" for name in ADDED]
    assert done.report["tree"] == {"path": str(wheel), "version": "0.0.1", "revision": None}
    assert done.report["wheel"] == str(out / NAME)
    assert f"--- a/sglang/{ARGUMENTS}\n" in done.report["diff"]
    assert [path.name for path in out.iterdir()] == [NAME]


def test_text_report(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    done = run("apply", "--wheel", wheel, tmp_path / NAME)
    said = done.stdout.decode()
    assert said.startswith(f"SGLang 0.0.1 in {wheel}: {CHANGED_AND_ADDED}\n")
    assert said.endswith(f"\nwrote {tmp_path / NAME}\n")
    again = run("apply", "--wheel", tmp_path / NAME, tmp_path / "out")
    assert (again.code, again.stderr) == (0, "")
    assert again.stdout.decode().endswith("\nno wheel is written: it is as wanted\n")
    assert not (tmp_path / "out").exists()
    document = run("apply", "--wheel", tmp_path / NAME, tmp_path / "out", "--format", "json")
    assert document.report["wheel"] is None


def test_check_writes_nothing(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    before = snapshot(tmp_path)
    done = run("apply", "--check", "--diff", "--wheel", wheel, tmp_path / "out")
    assert (done.code, done.stderr) == (1, "")
    assert f"would write {tmp_path / 'out' / NAME}".encode() in done.stdout
    assert snapshot(tmp_path) == before


def test_conflict_writes_nothing(tmp_path: Path) -> None:
    spoiled = SOURCES[COMMON].replace("def get_dispatch", "def got_dispatch").encode()
    wheel = build_wheel(tmp_path, {f"sglang/{COMMON}": spoiled})
    before = snapshot(tmp_path)
    done = run("apply", "--wheel", wheel, tmp_path / "out")
    assert done.code == 3
    assert b"conflicts, nothing is written" in done.stdout
    assert b"no wheel" not in done.stdout
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"../evil.py": b""}, "which a wheel never does"),
        ({"sglang/srt/server_args.py": b"x = 1\n"}, "no deterministic inference"),
        ({"sglang/srt/utils/common.py": b"def ("}, "does not parse"),
    ],
)
def test_bad_wheel_is_refused(tmp_path: Path, changes: dict[str, bytes], said: str) -> None:
    wheel = build_wheel(tmp_path, {**changes})
    before = snapshot(tmp_path)
    done = run("apply", "--wheel", wheel, tmp_path / "out")
    assert (done.code, done.stdout) == (4, b"")
    assert said in done.stderr
    assert snapshot(tmp_path) == before


def test_existing_wheel_is_kept(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    (tmp_path / NAME).write_bytes(b"mine")
    done = run("apply", "--wheel", wheel, tmp_path)
    assert done.code == 4
    assert "is not overwritten" in done.stderr
    assert (tmp_path / NAME).read_bytes() == b"mine"


def test_copies_and_dropped_files_are_said(tmp_path: Path) -> None:
    more = {"build/lib/sglang/srt/x.py": b"", "sglang/srt/server_args.pyc": b""}
    done = run("apply", "--wheel", build_wheel(tmp_path, {**more}), tmp_path / "out")
    assert done.code == 0
    assert "build/lib/sglang is another copy of the package" in done.stderr
    assert "sglang/srt/server_args.pyc is left out of the patched wheel" in done.stderr


@pytest.mark.parametrize("arguments", [["FILE", ""], ["", "OUT"], ["FILE", "OUT", "--only", "x"]])
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    wheel = build_wheel(tmp_path)
    named = {"FILE": str(wheel), "OUT": str(tmp_path / "out")}
    done = run("apply", "--wheel", *(named.get(part, part) for part in arguments))
    assert done.code == 2
    assert not (tmp_path / "out").exists()


def test_pip_installs_checks_and_uninstalls_the_result(tmp_path: Path) -> None:
    assert run("apply", "--wheel", build_wheel(tmp_path), tmp_path / "out").code == 0
    venv.create(tmp_path / "venv", with_pip=False)
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    python = tmp_path / "venv" / "bin" / "python"

    def pip(*arguments: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip("install", "--no-index", "--no-deps", str(tmp_path / "out" / NAME))
    assert f"sglang=={VERSION}+{SUFFIX}\n" in pip("list", "--format", "freeze")
    pip("check")
    status = run("apply", site, "--check", "--format", "json")
    assert (status.code, status.report["changed"]) == (0, [])
    pip("uninstall", "--yes", "sglang")
    assert list(site.iterdir()) == []
