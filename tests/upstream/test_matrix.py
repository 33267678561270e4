"""Runs over many trees say of each what the golden table says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.verify import isolation
from tests.engine.package import run as run_here
from tests.engine.package import snapshot
from tests.faults.named import FAULTS
from tests.upstream.golden import read_expected
from tests.upstream.program import program
from tests.upstream.releases import FORKS, RELEASES, release_tree
from tests.upstream.repository import FOLDER, release_repository

FAULT = "the clamp off the NPU only"
"""One that every seam takes for its own change still, so that only the checks show it."""


@pytest.fixture(autouse=True)
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember answers apart from the user's; the downloads are shared."""
    releases = release_tree(RELEASES[0]).parent
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/releases").symlink_to(releases)
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path / "cache"))


def git(folder: Path, *arguments: str | Path) -> None:
    subprocess.run(["git", "-C", str(folder), *map(str, arguments)], check=True)


def entry(result: dict[str, Any], above: str) -> dict[str, Any]:
    """Return what the golden table has, with paths as in the release."""
    if "error" in result:
        return {"exit": 4}
    found = {
        "exit": 0,
        "changed": [str(Path(path).relative_to(above)) for path in result["changed"]],
        "added": [str(Path(path).relative_to(above)) for path in result["added"]],
        "statuses": {outcome["seam"]: outcome["status"] for outcome in result["outcomes"]},
    }
    gaps = {each["seam"]: each["gaps"] for each in result["outcomes"] if each["gaps"]}
    return {**found, "gaps": gaps} if gaps else found


HISTORY = ("0.5.3rc0", "0.5.3rc2", "0.5.8", "0.5.9", "0.5.12", "0.5.23")
"""Enough of the releases to have every status."""


@pytest.mark.parametrize(
    "versions", [HISTORY, pytest.param(RELEASES, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("kind", ["bare", pytest.param("partial", marks=pytest.mark.slow)])
def test_releases_of_a_repository(tmp_path: Path, kind: str, versions: tuple[str, ...]) -> None:
    repository = release_repository(*versions)
    if kind == "partial":
        clone = tmp_path / "clone"
        options = ["--quiet", "--no-checkout", "--filter=blob:none"]
        git(tmp_path, "clone", *options, f"file://{repository}", clone)
        repository = clone
    before = snapshot(repository) if kind == "bare" else {}
    expected = {f"v{version}": read_expected()[version] for version in versions}
    for _ in range(2):
        run = program("matrix", repository, "--revs", "v*", "--format", "json")
        assert run.code == 4
        found = {result["name"]: entry(result, FOLDER) for result in run.report["results"]}
        assert found == expected
        assert list(found) == list(expected)
    if kind == "bare":
        assert snapshot(repository) == before


def test_releases_and_folders() -> None:
    asked = [">=0.5.3rc2,<0.5.3.post1", "==0.5.23", *(FORKS[0], FORKS[-1])]
    options = [part for each in asked for part in ("--releases", each)]
    options += ["--trees", str(release_tree("0.5.9"))]
    run = program("matrix", *options, "--format", "json")
    results = run.report["results"]
    names = ["0.5.3rc2", "0.5.3", "0.5.23", FORKS[0], FORKS[-1], str(release_tree("0.5.9"))]
    assert [result["name"] for result in results] == names
    for result in results:
        version = "0.5.9" if result["name"].startswith("/") else result["name"]
        assert entry(result, ".") == read_expected()[version]


def test_touching_on_releases() -> None:
    repository = release_repository(*HISTORY)
    options = ["--first-parent", "--touching", "--format", "json"]
    run = program("matrix", repository, "--revs", "v0.5.3rc2..v0.5.12", *options)
    assert run.code == 0
    versions = [result["tree"]["version"] for result in run.report["results"]]
    assert versions[-1] == "0.5.12"
    assert set(versions) <= set(HISTORY)


def test_static_checks(tmp_path: Path) -> None:
    repository = release_repository(*HISTORY)
    done = program("matrix", repository, "--revs", "v0.5.9", "--static", "--format", "json")
    assert done.code == 0
    for result in done.report["results"]:
        verdicts = [check["verdict"] for check in result["checks"]]
        assert verdicts.count("pass") > 20
        assert "fail" not in verdicts


def test_bisect_on_releases() -> None:
    repository = release_repository(*HISTORY)
    ends = ["--good", "v0.5.8", "--bad", "v0.5.23", "--seam", "radix_cache"]
    run = program("bisect", repository, *ends, "--format", "json")
    assert run.code == 0
    first, last = json.loads(run.stdout)["changes"]
    assert (first["before"], first["after"]) == ("withheld", "pending")
    assert first["subject"] == "Release 0.5.12"
    assert "ascend_backend.py" in first["diff"]
    assert (last["before"], last["after"]) == ("pending", "upstream")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with a release, its patched form, and one with a fault."""
    release = "0.5.12.post1"
    folder = tmp_path_factory.mktemp("checked") / "repository"
    git(folder.parent, "clone", "--quiet", release_repository(release), folder)
    git(folder, "checkout", "--quiet", f"v{release}")
    assert program("apply", folder).code == 0
    fault = FAULTS[FAULT]
    texts = {
        PurePosixPath("sglang", name): (folder / FOLDER / "sglang" / name).read_text()
        for name in ("srt/layers/sampler.py",)
    }
    for tag, files in (("patched", {}), ("faulty", fault.files(texts))):
        for path, data in files.items():
            (folder / FOLDER / path).write_bytes(data)
        git(folder, "add", "--all")
        identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
        git(folder, *identity, "commit", "--quiet", "--message", tag)
        git(folder, "tag", tag)
    return folder


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which trees are executed; only what the fault is in, or a run would take minutes."""
    trees: list[str] = []
    real = isolation.run

    def run_group(groups: Sequence[str], request: Mapping[str, Any]) -> list[Result]:
        trees.append(request["package"])
        return real(["sampler"], request)

    monkeypatch.setattr(isolation, "run", run_group)
    return trees


def failed(result: dict[str, Any]) -> set[str]:
    return {check["id"] for check in result["checks"] if check["verdict"] == "fail"}


@pytest.mark.slow
def test_checks_that_execute_a_release(checked: Path, tmp_path: Path, executed: list[str]) -> None:
    """A fault that no status shows is found in a revision and in a folder, and in every report."""
    before = snapshot(checked)
    (tmp_path / "none").mkdir()
    trees = ["--trees", str(tmp_path / "none"), str(checked)]
    formats = ("text", "junit", "sarif", "markdown", "github", "html")
    reports = [part for name in formats for part in ("--report", f"{name}={tmp_path / name}")]
    options = ["--verify", "--jobs", "1", "--format", "json", *reports]
    revisions = ["--revs", "patched", "--revs", "faulty"]
    first = run_here("matrix", checked, *revisions, *trees, *options)
    assert len(executed) == 3
    results = {result["name"]: result for result in first.report["results"]}
    none = results.pop(str(tmp_path / "none"))
    assert "not a tree of SGLang" in none["error"]["message"]
    wrong = FAULTS[FAULT].ids
    assert {name: failed(each) & wrong for name, each in results.items()} == {
        "patched": set(),
        "faulty": wrong,
        str(checked): wrong,
    }
    assert failed(results["patched"]) == set()
    for result in results.values():
        assert {o["status"] for o in result["outcomes"]} == {"already", "not-needed"}
        assert len([c for c in result["checks"] if c["kind"] == "behaviour"]) > 20
    for name in formats:
        assert all(each in (tmp_path / name).read_text() for each in wrong)
    # A tree that was not judged counts for more than a failed check.
    assert first.code == 4
    # What was executed of a revision holds for good; only git tells that nothing was changed.
    again = run_here("matrix", checked, *revisions, *options)
    assert again.code == 1
    assert again.report["results"] == [results["patched"], results["faulty"]]
    assert run_here("matrix", checked, "--revs", "patched", *options).code == 0
    assert len(executed) == 3
    assert run_here("matrix", checked, "--revs", "faulty", *options, "--no-cache").code == 1
    assert len(executed) == 4
    assert snapshot(checked) == before
