from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import os
import py_compile
import subprocess
import sys
import venv
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import ChangeSet, FileChange
from sgl_npu_patch.engine.record import paths_of, record, update
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.engine.package import ARGUMENTS, WRITTEN, build, plan_of, run, snapshot

METADATA = "sglang_corp-1.0.dist-info"


def install(root: Path, *, ending: str = "\n", metadata: str = METADATA) -> Path:
    """Lay the package out as an installer does, and return the RECORD."""
    package = build(root, "sglang")
    folder = root / metadata
    folder.mkdir()
    (folder / "INSTALLER").write_text("pip\n")
    name = metadata.partition("-")[0]
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    listed = [*sorted(package.rglob("*.py")), *sorted(folder.iterdir())]
    rows = [row(root, path) for path in listed]
    rows.insert(1, ["sglang/odd, name.json", "sha256=x", "1"])
    rows += [
        ["sglang/__pycache__/__init__.cpython-311.pyc", "", ""],
        [f"{metadata}/RECORD", "", ""],
    ]
    target = folder / "RECORD"
    with target.open("w", newline="") as file:
        csv.writer(file, lineterminator=ending).writerows(rows)
    return target


def row(root: Path, path: Path) -> list[str]:
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return [path.relative_to(root).as_posix(), f"sha256={digest}", str(len(data))]


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_changed_and_added_files_are_recorded(tmp_path: Path, ending: str) -> None:
    target = install(tmp_path, ending=ending)
    before = target.read_bytes()
    done = run("apply", tmp_path, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    assert (
        done.report["changed"][-1] == f"{METADATA}/RECORD"
        or f"{METADATA}/RECORD" in (done.report["changed"])
    )
    written = {f"sglang/{name}" for name in WRITTEN}
    found = {path: rest for path, *rest in rows_of(target)}
    for path in written:
        assert [path, *found[path]] == row(tmp_path, tmp_path / path)
    after = target.read_bytes()
    assert after.count(ending.encode()) == after.count(b"\n")
    kept = [line for line in before.splitlines() if line.split(b",")[0].decode() not in written]
    assert [line for line in after.splitlines() if line in kept] == kept
    assert len(rows_of(target)) == len(found)


def test_second_run_touches_nothing(tmp_path: Path) -> None:
    install(tmp_path)
    assert run("apply", tmp_path).code == 0
    before = snapshot(tmp_path)
    again = run("apply", tmp_path, "--format", "json")
    assert (again.code, again.report["changed"]) == (0, [])
    assert snapshot(tmp_path) == before


def test_diff_and_check_have_the_record(tmp_path: Path) -> None:
    target = install(tmp_path)
    before = snapshot(tmp_path)
    check = run("apply", tmp_path, "--check", "--format", "json")
    difference = run("diff", tmp_path).stdout
    assert snapshot(tmp_path) == before
    applied = run("apply", tmp_path, "--format", "json")
    assert check.report["changed"] == applied.report["changed"]
    patched = target.read_bytes()
    target.write_bytes(dict(before)[f"{METADATA}/RECORD"][0])
    for name in applied.report["changed"]:
        (tmp_path / name).write_bytes(before[name][0])
    for name in applied.report["added"]:
        (tmp_path / name).unlink()
    subprocess.run(["patch", "-p1", "-s"], input=difference, cwd=tmp_path, check=True)
    assert target.read_bytes() == patched


def test_every_distribution_that_owns_the_files_is_kept_true(tmp_path: Path) -> None:
    install(tmp_path)
    other = tmp_path / "other-1.dist-info"
    other.mkdir()
    (other / "RECORD").write_text("other.py,,\nsglang/srt/other.py,,\n")
    unrelated = (other / "RECORD").read_bytes()
    second = tmp_path / "sglang-1.dist-info"
    second.mkdir()
    (second / "RECORD").write_text(f"sglang/{ARGUMENTS},,")
    assert run("apply", tmp_path).code == 0
    assert (other / "RECORD").read_bytes() == unrelated
    assert row(tmp_path, tmp_path / "sglang" / ARGUMENTS) in rows_of(second / "RECORD")


def test_absent_record_is_said(tmp_path: Path) -> None:
    install(tmp_path).unlink()
    done = run("apply", tmp_path)
    assert done.code == 0
    assert done.stderr == (
        f"sgl-npu-patch: warning: {METADATA} has no RECORD, so the change is recorded nowhere: "
        "an uninstaller will not know the added files\n"
    )


def test_record_outside_of_the_given_folder_is_said(tmp_path: Path) -> None:
    target = install(tmp_path)
    before = target.read_bytes()
    done = run("apply", tmp_path / "sglang")
    assert done.code == 0
    assert f"{target} stands outside of {tmp_path / 'sglang'}" in done.stderr
    assert target.read_bytes() == before


def test_fetched_release_has_nothing_to_record_in(tmp_path: Path) -> None:
    install(tmp_path).unlink()
    (tmp_path / METADATA / "INSTALLER").unlink()
    assert run("apply", tmp_path).stderr == ""


def test_nothing_to_change_reads_no_record(tmp_path: Path) -> None:
    tree = open_directory(build(tmp_path, "sglang").parent, PROJECT)
    (tmp_path / METADATA / "RECORD").mkdir(parents=True)
    assert record(tree, ChangeSet(())).changes == ChangeSet(())


def test_update_keeps_what_it_does_not_know() -> None:
    before = b'"a,b.py",sha256=x,1\n\nodd\n\xff.py,,\nc.py,,'
    after = update(before, [("c.py", b"c"), ("d.py", b"d")])
    assert after.startswith(before[:-4])
    assert [line.split(b",")[0] for line in after.splitlines()[-2:]] == [b"c.py", b"d.py"]
    assert paths_of(after) >= {"a,b.py", "c.py", "d.py"}


def test_record_is_one_more_file_of_the_commit(tmp_path: Path) -> None:
    target = install(tmp_path)
    plan = plan_of(tmp_path)
    recorded = record(open_directory(tmp_path, PROJECT), plan.changes)
    changed = [change.path for change in recorded.changes.changes]
    assert PurePosixPath(METADATA, "RECORD") in changed
    assert changed == sorted(changed)
    own = next(c for c in recorded.changes.changes if c.path.name == "RECORD")
    assert own == FileChange(own.path, target.read_bytes(), own.after)


def test_pip_checks_and_uninstalls_the_result(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    install(site)
    assert run("apply", site).code == 0
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    for command in (["check"], ["uninstall", "--yes", "sglang-corp"]):
        done = subprocess.run([*pip, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert list(site.iterdir()) == []


PRINT_COUNT = """\
from sglang.srt.server_args import DETERMINISTIC_ATTENTION_BACKEND_CHOICES
print(DETERMINISTIC_ATTENTION_BACKEND_CHOICES.count("ascend"))
"""


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode), ids=lambda mode: mode.name)
def test_new_code_runs_whatever_was_compiled(
    tmp_path: Path, mode: py_compile.PycInvalidationMode
) -> None:
    package = build(tmp_path, "sglang")
    source = package / ARGUMENTS
    for level in (0, 1, 2):
        py_compile.compile(str(source), optimize=level, invalidation_mode=mode, doraise=True)
    py_compile.compile(str(source), str(source.with_suffix(".pyc")), invalidation_mode=mode)
    other = py_compile.compile(str(package / "version.py"), invalidation_mode=mode)
    assert run("apply", tmp_path).code == 0
    listed = subprocess.run(
        [sys.executable, "-c", PRINT_COUNT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert listed.stdout == "1\n"
    assert not list(source.parent.rglob("server_args*.pyc"))
    assert other is not None
    assert Path(other).is_file()


def test_compiled_files_come_back_when_the_commit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = build(tmp_path, "sglang")
    source = package / ARGUMENTS
    py_compile.compile(str(source))
    (package / ARGUMENTS.replace(".py", ".pyc")).write_bytes(b"legacy")
    before = snapshot(tmp_path)
    monkeypatch.setattr("sgl_npu_patch.engine.apply.prove", _fail)
    done = run("apply", tmp_path)
    assert done.code == 70
    assert snapshot(tmp_path) == before
    assert Path(importlib.util.cache_from_source(str(source))).is_file()


def _fail(*_: object) -> None:
    raise AssertionError("not as planned")
