"""The statuses of a release do not depend on where it is read from."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.repository import open_repository
from tests.engine.package import snapshot
from tests.upstream.golden import read_expected
from tests.upstream.program import Run, program
from tests.upstream.releases import copy_tree
from tests.upstream.repository import FOLDER, release_repository

# Each kind: too old, withheld seams, all applied, native.
VERSIONS = ("0.5.3rc0", "0.5.9", "0.5.12.post1", "0.5.23")
NEWEST = "v0.5.23"
JSON = ("--format", "json")


def git(folder: Path, *arguments: str | Path) -> str:
    command = ["git", "-C", str(folder), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def entry(run: Run, above: str) -> dict[str, Any]:
    """Give what the golden table has, with paths as in the release."""
    if run.code:
        return {"exit": run.code}
    found = {
        "exit": run.code,
        "changed": [str(path.relative_to(above)) for path in run.changed],
        "added": [str(path.relative_to(above)) for path in run.added],
        "statuses": run.statuses,
    }
    return {**found, "gaps": run.gaps} if run.gaps else found


@pytest.fixture(scope="module")
def bare() -> Path:
    return release_repository(*VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_revision_has_the_golden_status(bare: Path, version: str) -> None:
    run = program("status", bare, "--rev", f"v{version}", "--format", "json")
    assert entry(run, FOLDER) == read_expected()[version]
    if run.code == 0:
        commit = git(bare, "rev-parse", f"v{version}")
        tree = {"path": str(bare), "version": version, "revision": commit}
        assert run.report["tree"] == tree
    else:
        assert f"{bare} at " in run.stderr


@pytest.mark.parametrize("revision", ["main", "annotated", "short", NEWEST, "main~1^0~0"])
def test_any_name_of_a_commit(bare: Path, tmp_path: Path, revision: str) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--bare", bare, clone)
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    git(clone, *identity, "tag", "--annotate", "--message", "x", "annotated", NEWEST)
    version = "0.5.12.post1" if revision.startswith("main~1") else "0.5.23"
    name = git(clone, "rev-parse", "--short", NEWEST) if revision == "short" else revision
    run = program("status", clone, "--rev", name, "--format", "json")
    assert entry(run, FOLDER) == read_expected()[version]


def test_partial_clone_fetches_once(bare: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    address = f"file://{bare}"
    git(tmp_path, "clone", "--quiet", "--no-checkout", "--filter=blob:none", address, clone)
    packs = clone / ".git/objects/pack"
    before = set(packs.glob("*.pack"))
    for _ in range(2):
        run = program("status", clone, "--rev", "v0.5.12.post1", "--format", "json")
        assert entry(run, FOLDER) == read_expected()["0.5.12.post1"]
        assert len(set(packs.glob("*.pack")) - before) == 1
    shutil.move(bare, tmp_path / "away")
    try:
        assert program("status", clone, "--rev", "v0.5.12.post1").code == 0
        run = program("status", clone, "--rev", "v0.5.9")
    finally:
        shutil.move(tmp_path / "away", bare)
    assert run.code == 4
    assert "this partial clone lacks" in run.stderr


def test_diff_of_a_revision_is_taken_by_git(bare: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", bare, clone)
    git(clone, "checkout", "--quiet", "v0.5.12.post1")
    at_root = program("diff", clone, "--rev", "v0.5.12.post1")
    assert at_root == program("diff", clone / "python", "--rev", "v0.5.12.post1")
    assert at_root == program("diff", clone)
    (tmp_path / "patch").write_bytes(at_root.stdout)
    git(clone, "apply", tmp_path / "patch")
    assert b"nothing to change" in program("status", clone).stdout


def pack(tree: Path, archive: Path, above: str) -> Path:
    """Make an archive of a release, of the kind that its name says."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    if archive.suffix == ".gz":
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for path in files:
                tar.add(path, f"{above}/{path.relative_to(tree)}")
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files:
                packed.write(path, str(Path(above) / path.relative_to(tree)))
            if archive.suffix == ".whl":
                (info,) = tree.glob("*.dist-info")
                packed.writestr(f"{info.name}/RECORD", "")
    return archive


@pytest.mark.parametrize("kind", ["whl", "zip", "tar.gz"])
def test_archive_has_the_golden_status(tmp_path: Path, kind: str) -> None:
    version = "0.5.9"
    tree = copy_tree(version, tmp_path / "tree")
    archive = tmp_path / f"sglang-{version}-py3-none-any.{kind}"
    above = "." if kind == "whl" else f"sglang-{version}/{FOLDER}"
    pack(tree, archive, above)
    run = program("status", archive, "--format", "json")
    assert entry(run, above) == read_expected()[version]
    assert run.report["tree"]["version"] == version


@pytest.mark.slow
def test_verify_reads_and_executes_a_revision_and_a_wheel(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patched release passes from either, with nothing of where it was executed left."""
    version = "0.5.12.post1"
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", bare, clone)
    git(clone, "checkout", "--quiet", f"v{version}")
    assert program("apply", clone).code == 0
    git(clone, "add", "--all")
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    git(clone, *identity, "commit", "--quiet", "--message", "Patch")
    git(clone, "tag", "patched")
    git(clone, "checkout", "--quiet", "v0.5.9")
    tree = copy_tree(version, tmp_path / "tree")
    name = f"sglang-{version}-py3-none-any.whl"
    wheel = pack(tree, tmp_path / name, ".")
    assert program("apply", tree).code == 0
    (tmp_path / "patched").mkdir()
    patched = pack(tree, tmp_path / "patched" / name, ".")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    before = snapshot(clone)
    few = ("--only", "device_dispatch", *JSON)
    bases = ("--rev", "patched", "--base-rev", f"v{version}")
    revision = program("verify", clone, *bases, *few)
    archive = program("verify", patched, "--base", wheel, *few)
    assert [revision.code, archive.code, revision.stderr, archive.stderr] == [0, 0, "", ""]
    checks = json.dumps(archive.report["checks"]).replace("sglang/srt/", f"{FOLDER}/sglang/srt/")
    assert revision.report["checks"] == json.loads(checks)
    kinds = {check["kind"] for check in archive.report["checks"]}
    assert kinds == {"static", "behaviour"}
    assert str(scratch).encode() not in revision.stdout + archive.stdout
    assert list(scratch.iterdir()) == []
    assert snapshot(clone) == before
    unpatched = program("verify", bare, "--rev", f"v{version}", "--static")
    assert unpatched.code == 1
    assert b"the tree is not patched; run sgl-npu-patch apply first\n" in unpatched.stdout


@pytest.mark.slow
def test_stems_are_all_that_contents_are_searched_for() -> None:
    """A name without a stem is found as well, but all contents are read once more for it."""
    versions = ("0.5.9", "0.5.12.post1", "0.5.23")
    with open_repository(release_repository(*versions), PROJECT) as opened:
        for version in versions:
            make_plan(opened.open(f"v{version}"), SERIES)
        assert opened._search._stems == [*PROJECT.stems]
