from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.package import COMMON, build, run, snapshot
from tests.engine.test_git import git
from tests.engine.test_plan import EXPECTED
from tests.matrix.histories import BROKEN, OTHER, commit_of, history


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(folder))
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    commits = [{}, {OTHER: "x = 1\n"}, {OTHER: "x = 2\n"}, {COMMON: BROKEN}, {OTHER: "x = 4\n"}]
    return history(tmp_path / "repository", commits, {"v1": 0, "v2": 2, "v3": 4})


def statuses(result: Mapping[str, Any]) -> dict[str, str]:
    return {outcome["seam"]: outcome["status"] for outcome in result["outcomes"]}


def test_json(bare: Path, tmp_path: Path) -> None:
    build(tmp_path / "tree")
    options = ["--trees", str(tmp_path / "tree"), "--revs", "v[12]", "--jobs", "1"]
    done = run("matrix", bare, *options, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    assert done.report["changes"] == []
    folder, first, second = done.report["results"]
    assert [folder["name"], first["name"], second["name"]] == [str(tmp_path / "tree"), "v1", "v2"]
    for result in (folder, first, second):
        assert statuses(result) == EXPECTED
    alone = run("status", bare, "--rev", "v2", "--format", "json").report
    assert second == {"name": "v2"} | alone
    assert (
        folder
        == {"name": str(tmp_path / "tree")}
        | run("status", tmp_path / "tree", "--format", "json").report
    )


def test_order_is_that_of_the_options(bare: Path, tmp_path: Path) -> None:
    build(tmp_path / "tree")
    trees, revs = ["--trees", str(tmp_path / "tree")], ["--revs", "v1"]
    for options, first in ((trees + revs, str(tmp_path / "tree")), (revs + trees, "v1")):
        done = run("matrix", bare, *options, "--jobs", "1", "--format", "json")
        assert done.report["results"][0]["name"] == first


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--revs", "v1"], 0),
        (["--revs", "v*"], 3),
        (["--revs", "v*", "--trees", "none"], 3),
        (["--revs", "v1", "--trees", "none"], 4),
    ],
)
def test_exit_code_is_that_of_the_worst(bare: Path, options: list[str], code: int) -> None:
    assert run("matrix", bare, *options, "--jobs", "1").code == code


def test_failed_check(bare: Path) -> None:
    # The small package is not formatted as the checks ask for.
    done = run("matrix", bare, "--revs", "v1", "--static", "--format", "json")
    verdicts = [check["verdict"] for check in done.report["results"][0]["checks"]]
    assert done.code == ("fail" in verdicts)
    assert verdicts.count("pass") > 20


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "nothing is asked for: give --revs, --releases or --trees"),
        (["REPO"], 2, "nothing is asked for"),
        (["--revs", "v1"], 2, "--revs needs a git repository"),
        (["REPO", "--trees", "."], 2, "which revisions of REPO? give --revs"),
        (["REPO", "--revs", "v1", "--touching"], 2, "are about ranges: give --revs A..B"),
        (["REPO", "--revs", "v1", "--first-parent"], 2, "are about ranges: give --revs A..B"),
        (["REPO", "--revs", "w*"], 4, "no tag or branch matches 'w*'; of 4 names, near are: v"),
        (["REPO", "--revs", "v1", "--write-baseline"], 2, "needs --baseline FILE"),
        (["REPO", "--revs", "v1", "--baseline", "none"], 4, "--write-baseline makes a new one"),
        (["REPO", "--revs", "v1", "--baseline", ""], 2, "FILE is empty"),
        (["REPO", "--revs", "v1", "--report", "json"], 2, "is not FORMAT=FILE"),
        (["REPO", "--revs", "v1", "--report", "xml=x"], 2, "formats are text, json, junit"),
        (["REPO", "--revs", "v1", "--report", "json=-"], 2, "is chosen by --format json"),
        (["REPO", "--revs", "v1", "--report", "json=no/x"], 4, "no/x: cannot be written"),
        (["REPO", "--revs", "v1", "--jobs", "0"], 2, "--jobs"),
        (["--releases", "x y"], 2, "names no releases"),
        (["--trees", ""], 2, "DIR is empty"),
        (["none", "--revs", "v1"], 4, "none: does not exist"),
    ],
)
def test_wrong_use(bare: Path, options: list[str], code: int, said: str) -> None:
    done = run("matrix", *(str(bare) if option == "REPO" else option for option in options))
    assert (done.code, done.stdout) == (code, b"")
    assert said.replace("REPO", str(bare)) in done.stderr


def test_text(bare: Path) -> None:
    done = run("matrix", bare, "--revs", "v*", "--jobs", "1")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "3 trees, 1 in conflict"
    assert "conflict in device_dispatch" in done.stdout.decode()


def test_baseline(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    compare = ["matrix", str(bare), "--revs", "[vm]*", "--jobs", "1", "--baseline", str(file)]
    written = run(*compare, "--write-baseline")
    assert written.code == 0
    assert run(*compare).code == 0
    content = json.loads(file.read_text())
    known = content["trees"]["v3"]["statuses"]
    assert (known["device_dispatch"], known["batch_invariant"]) == ("conflict", "conflict")
    for name in ("v3", "main"):
        known = content["trees"][name]["statuses"]
        known["device_dispatch"] = "applied"
    file.write_text(json.dumps(content))
    done = run(*compare, "--format", "json")
    assert done.code == 1
    assert done.report["baseline"] == str(file)
    first, second = done.report["changes"]
    assert [first["name"], second["name"]] == ["v3", "main"]
    for change in (first, second):
        assert (change["seam"], change["before"], change["after"]) == (
            "device_dispatch",
            "applied",
            "conflict",
        )
        # The nearest revision before it is v2.
        assert change["commit"] == commit_of(bare, "main~1")
        assert change["subject"] == "Change 3"
        assert "\n-def get_dispatch_device_backend():\n" in change["diff"]
        assert change["evidence"]["sought"] == "get_dispatch_device_backend"
    text = run(*compare)
    assert text.code == 1
    assert "Change 3" in text.stdout.decode()


def test_baseline_of_a_branch_that_moved(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    compare = ["matrix", str(bare), "--revs", "main", "--jobs", "1", "--baseline", str(file)]
    git(bare, "update-ref", "refs/heads/main", "v1")
    assert run(*compare, "--write-baseline").code == 0
    git(bare, "update-ref", "refs/heads/main", "v3")
    done = run(*compare, "--format", "json")
    assert done.code == 1
    broken = commit_of(bare, "v3~1")
    assert [change["commit"] for change in done.report["changes"]] == [broken, broken]


def test_new_tree_is_news(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    assert run("matrix", bare, "--revs", "v1", "--baseline", file, "--write-baseline").code == 0
    done = run("matrix", bare, "--revs", "v[12]", "--baseline", file, "--format", "json")
    assert done.code == 1
    (change,) = done.report["changes"]
    assert (change["name"], change["seam"]) == ("v2", "")
    assert (change["before"], change["after"]) == ("missing", "judged")


def test_reports(bare: Path, tmp_path: Path) -> None:
    formats = ("text", "json", "junit", "sarif", "markdown", "github", "html")
    reports = [option for name in formats for option in ("--report", f"{name}={tmp_path / name}")]
    done = run("matrix", bare, "--revs", "v*", "--jobs", "1", *reports)
    assert done.code == 3
    assert (tmp_path / "text").read_bytes() == done.stdout
    document = json.loads((tmp_path / "json").read_text())
    assert [result["name"] for result in document["results"]] == ["v1", "v2", "v3"]
    assert all("diff" not in result for result in document["results"])
    page = (tmp_path / "html").read_text()
    assert "npu_ops.py" in page
    for name in formats:
        assert "device_dispatch" in (tmp_path / name).read_text()
        printed = run("matrix", bare, "--revs", "v*", "--jobs", "1", "--format", name).stdout
        assert printed == (tmp_path / name).read_bytes()


def test_nothing_is_written(bare: Path, tmp_path: Path, cache: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(bare), str(clone))
    before = snapshot(clone)
    assert run("matrix", clone, "--revs", "v*", "--jobs", "1", "--no-cache").code == 3
    assert not cache.exists()
    assert run("matrix", clone, "--revs", "v*", "--jobs", "1").code == 3
    assert cache.exists()
    assert snapshot(clone) == before
