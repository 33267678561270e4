from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.verify import isolation
from tests.engine.package import COMMON, build, run, snapshot
from tests.engine.repositories import commit, git
from tests.engine.test_plan import EXPECTED
from tests.matrix.histories import BROKEN, OTHER, commit_of, history
from tests.verify.checked import edited, lay_out, original, patched


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
        (["", "--revs", "v1"], 2, "--revs needs a git repository"),
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
        known["device_dispatch"] = "pending"
    file.write_text(json.dumps(content))
    done = run(*compare, "--format", "json")
    assert done.code == 1
    assert done.report["baseline"] == str(file)
    first, second = done.report["changes"]
    assert [first["name"], second["name"]] == ["v3", "main"]
    for change in (first, second):
        assert (change["seam"], change["before"], change["after"]) == (
            "device_dispatch",
            "pending",
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


FAULTY = ("    return seed\n", "    return positions\n")
FORMATS = ("text", "json", "junit", "sarif", "markdown", "github", "html")


class Executed:
    """Stand in for the processes that execute a tree; one check finds the fault."""

    def __init__(self) -> None:
        self.trees: list[str] = []
        self.lost = False

    def __call__(self, groups: Sequence[str], request: Mapping[str, Any]) -> list[Result]:
        file = Path(request["package"], "srt/layers/hashing.py")
        # What is executed is what the tree is once it is patched.
        assert Path(request["package"], "srt/hardware_backend/npu").is_dir()
        self.trees.append(request["package"])
        found = "noisy" if FAULTY[1] in file.read_text() else "as it must be"
        return [
            Result(
                id="sampler.draws",
                seam="sampler",
                kind="behaviour",
                verdict="fail" if found == "noisy" else "pass",
                meaning="It draws.",
                message=f"{found} in {file}",
                lost=self.lost,
            )
        ]


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Executed:
    stub = Executed()
    monkeypatch.setattr(isolation, "run", stub)
    return stub


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """Give a repository whose last revision has a fault that only executing it shows."""
    folder = tmp_path / "checked"
    git(tmp_path, "init", "--quiet", str(folder))
    hashing = edited("srt/layers/hashing.py", FAULTY)
    for tag, sources in {"v1": original(), "v2": patched(), "v3": hashing}.items():
        lay_out(sources, folder)
        commit(folder)
        git(folder, "tag", tag)
    return folder


def verdicts(result: Mapping[str, Any]) -> dict[str, str]:
    return {check["id"]: check["verdict"] for check in result.get("checks", [])}


def test_checks_are_executed_on_each_tree_as_it_is_once_patched(
    checked: Path, tmp_path: Path, executed: Executed
) -> None:
    before = snapshot(checked)
    trees = ["--trees", str(lay_out(original(), tmp_path / "tree"))]
    command = ["matrix", str(checked), "--revs", "v*", *trees, "--verify", "--jobs", "1"]
    done = run(*command, "--format", "json")
    assert (done.code, done.stderr) == (1, "")
    found = [verdicts(result) for result in done.report["results"]]
    assert [each["sampler.draws"] for each in found] == ["pass", "pass", "fail", "pass"]
    assert [each["sampler.in_place"] for each in found] == ["pass"] * 4
    assert len(executed.trees) == 4
    # Nothing is executed where it stands, and what was written for it is gone.
    assert not any(Path(each).exists() for each in executed.trees)
    messages = {check["message"] for r in done.report["results"] for check in r["checks"]}
    assert "noisy in sglang/srt/layers/hashing.py" in messages
    assert snapshot(checked) == before


def test_failed_check_is_in_every_format(checked: Path, tmp_path: Path, executed: Executed) -> None:
    for revs, code in (("v[12]", 0), ("v*", 1)):
        reports = [part for each in FORMATS for part in ("--report", f"{each}={tmp_path / each}")]
        options = ["--revs", revs, "--verify", "--jobs", "1", *reports]
        assert run("matrix", checked, *options).code == code
        for name in ("text", "sarif", "markdown", "github", "html"):
            assert ("failed check sampler.draws" in (tmp_path / name).read_text()) == bool(code)
        assert ('failures="1"' in (tmp_path / "junit").read_text()) == bool(code)
        results = json.loads((tmp_path / "json").read_text())["results"]
        failed = [r["name"] for r in results if "fail" in verdicts(r).values()]
        assert failed == ["v3"] * code


def test_a_tree_that_cannot_be_judged_stops_no_check(
    checked: Path, tmp_path: Path, executed: Executed
) -> None:
    build(tmp_path / "conflict", common=BROKEN)
    lay_out(edited("srt/layers/sampler.py", ("class ", "class class ")), tmp_path / "broken")
    trees = ["--trees", *(str(tmp_path / name) for name in ("none", "broken", "conflict"))]
    command = ["matrix", str(checked), *trees, "--revs", "v2", "--verify", "--jobs", "1"]
    done = run(*command, "--format", "json")
    assert done.code == 3
    none, broken, conflict, good = done.report["results"]
    assert "does not exist" in none["error"]["message"]
    assert "sampler.py" in broken["error"]["message"]
    assert (verdicts(conflict), statuses(conflict)["device_dispatch"]) == ({}, "conflict")
    assert verdicts(good)["sampler.draws"] == "pass"


def test_executed_checks_of_revisions_are_remembered(
    checked: Path, tmp_path: Path, executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = ["--trees", str(lay_out(original(), tmp_path / "tree"))]
    command = ["matrix", str(checked), "--revs", "v*", *trees, "--verify", "--jobs", "1"]

    def count(*options: str) -> int:
        before = len(executed.trees)
        printed.append(run(*command, *options, "--format", "json").report)
        return len(executed.trees) - before

    printed: list[dict[str, Any]] = []
    # Only git can tell that no file of a tree was changed: a folder is executed each time.
    assert [count("--no-cache"), count(), count(), count("--no-cache")] == [4, 4, 1, 4]
    assert all(document == printed[0] for document in printed)
    # What was found with another torch says nothing about this one.
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"another {name}")
    assert count() == 4


def test_check_that_was_lost_is_executed_again(checked: Path, executed: Executed) -> None:
    """A process that was too slow, or killed for its memory, says nothing for good."""
    command = ["matrix", str(checked), "--revs", "v[12]", "--verify", "--jobs", "1"]
    executed.lost = True
    first = run(*command)
    executed.lost = False
    assert [run(*command), run(*command)] == [first, first]
    assert len(executed.trees) == 4


def test_static_checks_execute_nothing(checked: Path, executed: Executed) -> None:
    done = run("matrix", checked, "--revs", "v*", "--static", "--jobs", "1", "--format", "json")
    assert (done.code, executed.trees) == (0, [])
    assert {"sampler.in_place"} <= verdicts(done.report["results"][0]).keys()


@pytest.mark.parametrize(
    "options",
    [
        ["--trees", "a", "b", "c"],
        ["--trees", "a", "b", "--trees", "c"],
        ["--trees=a", "--trees", "b", "c", "--jobs", "1"],
    ],
)
def test_several_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        build(Path(name))
    done = run("matrix", *options, "--format", "json")
    assert done.code == 0
    assert [result["name"] for result in done.report["results"]] == ["a", "b", "c"]


def test_folders_end_at_the_next_option(bare: Path, tmp_path: Path) -> None:
    build(tmp_path / "a")
    trees = ["--trees", str(tmp_path / "a"), str(tmp_path / "none")]
    done = run("matrix", bare, *trees, "--revs", "v1", "--jobs", "1", "--format", "json")
    assert [result["name"] for result in done.report["results"]] == [*trees[1:], "v1"]
    # A repository behind them is taken for one of them, and missed.
    done = run("matrix", *trees, bare, "--revs", "v1")
    assert (done.code, done.stdout) == (2, b"")
    assert "--revs needs a git repository: sgl-npu-patch matrix REPO --revs" in done.stderr
