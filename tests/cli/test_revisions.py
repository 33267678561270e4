from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.engine.package import CHANGE, SOURCES, build, contents, run, snapshot
from tests.engine.repositories import commit, git, output
from tests.engine.test_plan import EXPECTED
from tests.engine.wheels import build_wheel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "reposi tory"
    build(folder)
    git(folder, "init", "--quiet")
    commit(folder)
    git(folder, "tag", "v1")
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-0.0.1.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name, source in SOURCES.items():
            packed.writestr(f"sglang-0.0.1/python/sglang/{name}", source)
    return path


def test_status_of_a_revision(root: Path) -> None:
    build(root, common="def is_npu():\n    return False\n")
    before = snapshot(root)
    done = run("status", root, "--rev", "v1", "--format", "json")
    assert (done.code, done.stderr, done.statuses) == (0, "", EXPECTED)
    revision = output(root, "rev-parse", "HEAD")
    tree = {"path": str(root), "version": "0.0.1", "revision": revision}
    assert done.report["tree"] == tree
    said = run("status", root, "--rev", "v1").stdout.decode()
    assert said.startswith(f"SGLang 0.0.1 in {root} at {revision[:12]}: would {CHANGE}")
    assert run("status", root).code == 3
    assert snapshot(root) == before


def test_check_of_a_revision(root: Path) -> None:
    assert run("apply", root, "--check", "--rev", "v1").code == 1
    run("apply", root)
    commit(root)
    assert run("apply", root, "--check", "--rev", "HEAD", "--strict").code == 0
    assert run("apply", root, "--check", "--rev", "HEAD~1", "--diff").stdout.endswith(
        run("diff", root, "--rev", "v1").stdout
    )


@pytest.mark.parametrize("inside", [".", "python", "python/sglang"])
def test_diff_of_a_revision_is_applied_at_the_root(root: Path, inside: str) -> None:
    diff = run("diff", root / inside, "--rev", "v1")
    assert (diff.code, diff.stderr, diff) == (0, "", run("diff", root))
    command = ["git", "apply", "--whitespace=nowarn"]
    subprocess.run(command, check=True, cwd=root, input=diff.stdout)
    applied = contents(root)
    git(root, "reset", "--quiet", "--hard")
    git(root, "clean", "--quiet", "--force", "-d")
    run("apply", root)
    assert contents(root) == applied


def test_conflict_in_a_revision(root: Path) -> None:
    build(root, common="def is_npu():\n    return False\n")
    commit(root)
    done = run("diff", root, "--rev", "HEAD")
    assert (done.code, done.stdout) == (3, b"")
    assert "conflict in device_dispatch" in done.stderr


def test_revision_that_is_too_old(root: Path) -> None:
    build(root, server_args="", sampler="", batch_invariant_ops="")
    revision = commit(root)
    done = run("status", root, "--rev", "HEAD")
    assert done.code == 4
    assert f"{root} at {revision[:12]}: this SGLang has no deterministic inference" in done.stderr


def test_unknown_revision(root: Path, archive: Path) -> None:
    done = run("status", root, "--rev", "--upload-pack=x")
    assert done.code == 4
    assert "'--upload-pack=x' is no revision of this repository" in done.stderr
    assert run("status", archive.parent, "--rev", "HEAD").code == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rev", "v1"], r"apply writes to a checkout, not to a revision: check it out"),
        (["--rev", "v1", "--wheel", "x.whl"], "--rev and --wheel exclude each other"),
        (["--rev", "v1", "--check", "--wheel", "x.whl"], "--rev and --wheel exclude each other"),
        (["--rev", "", "--check"], "REV is empty"),
    ],
)
def test_apply_to_a_revision(root: Path, options: list[str], said: str) -> None:
    before = snapshot(root)
    done = run("apply", root, *options)
    assert (done.code, done.stdout) == (2, b"")
    assert said in done.stderr
    assert snapshot(root) == before


def test_archive(archive: Path) -> None:
    before = archive.read_bytes()
    done = run("status", archive, "--format", "json")
    assert (done.code, done.stderr, done.statuses) == (0, "", EXPECTED)
    assert done.report["tree"] == {"path": str(archive), "version": "0.0.1", "revision": None}
    assert run("apply", archive, "--check").code == 1
    assert b"+++ b/sglang-0.0.1/python/sglang/srt/" in run("diff", archive).stdout
    assert archive.read_bytes() == before


def test_wheel(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert run("status", wheel, "--format", "json").statuses == EXPECTED
    done = run("apply", wheel)
    assert done.code == 2
    assert f"`apply --wheel {wheel} OUT` writes a patched copy" in done.stderr


def test_apply_to_an_archive(archive: Path) -> None:
    before = archive.read_bytes()
    done = run("apply", archive)
    assert done.code == 2
    assert "unpack it and apply there; or pass --check" in done.stderr
    assert archive.read_bytes() == before


def test_revision_of_an_archive(archive: Path) -> None:
    done = run("status", archive, "--rev", "v1")
    assert done.code == 2
    assert "is an archive" in done.stderr
