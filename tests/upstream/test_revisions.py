"""The statuses of a release do not depend on where it is read from."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.golden import read_expected
from tests.upstream.program import Run, program
from tests.upstream.releases import copy_tree
from tests.upstream.repository import FOLDER, release_repository

# Each kind: too old, withheld seams, all applied, native.
VERSIONS = ("0.5.3rc0", "0.5.9", "0.5.12.post1", "0.5.23")
NEWEST = "v0.5.23"


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
    assert "files of this partial clone are not here and cannot be fetched" in run.stderr


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


@pytest.mark.parametrize("kind", ["whl", "zip", "tar.gz"])
def test_archive_has_the_golden_status(tmp_path: Path, kind: str) -> None:
    version = "0.5.9"
    tree = copy_tree(version, tmp_path / "tree")
    archive = tmp_path / f"sglang-{version}-py3-none-any.{kind}"
    above = "." if kind == "whl" else f"sglang-{version}/{FOLDER}"
    files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    if kind == "tar.gz":
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for path in files:
                tar.add(path, f"{above}/{path.relative_to(tree)}")
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files:
                packed.write(path, str(Path(above) / path.relative_to(tree)))
            if kind == "whl":
                packed.writestr(f"sglang-{version}.dist-info/RECORD", "")
    run = program("status", archive, "--format", "json")
    assert entry(run, above) == read_expected()[version]
    assert run.report["tree"]["version"] == version
