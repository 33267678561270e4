from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.verify import isolation, static
from sgl_npu_patch.verify import run as runner
from sgl_npu_patch.verify.behaviour import GROUPS
from tests.engine.package import SOURCES, run, snapshot
from tests.engine.repositories import commit, git, output
from tests.engine.wheels import build_wheel
from tests.verify.checked import edited, lay_out, original, patched

SAMPLER = "srt/layers/sampler.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return lay_out(patched(), tmp_path / "tree")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return lay_out(original(), tmp_path / "base")


def behaviour(name: str, verdict: str) -> Result:
    return Result(
        id=name,
        seam=name.partition(".")[0],
        kind="behaviour",
        verdict=verdict,  # type: ignore[arg-type]
        meaning="It behaves.",
        message="It behaves.",
    )


class Runner:
    """Stand in for the processes that execute a tree."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], dict[str, Any]]] = []
        self.results = [behaviour("sampler.draws", "pass")]
        self.found: list[dict[str, bytes]] = []

    def __call__(self, groups: Sequence[str], request: Mapping[str, Any]) -> list[Result]:
        self.asked.append((list(groups), dict(request)))
        json.dumps(request)
        # Both trees are there while the processes run, and their paths are in what is found.
        folders = [request["package"], *filter(None, [request["base"]])]
        self.found = [sources(Path(folder)) for folder in folders]
        where = [f"{folder}/{SAMPLER}" for folder in folders]
        return [replace(each, code="\n".join(where), found=where[0]) for each in self.results]


def sources(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.py"))
    }


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stub = Runner()
    monkeypatch.setattr(isolation, "run", stub)
    return stub


def test_a_patched_tree_passes_and_is_not_touched(tree: Path) -> None:
    before = snapshot(tree)
    done = run("verify", tree, "--static")
    assert (done.code, done.stderr) == (0, "")
    printed = done.stdout.decode()
    counts = printed.splitlines()[-1]
    assert printed.startswith(f"SGLang of unknown version in {tree}: {counts}\n")
    assert " passed, 0 failed, " in counts
    assert snapshot(tree) == before


def test_an_unpatched_tree_fails_once(base: Path, executed: Runner) -> None:
    text = run("verify", base)
    assert (text.code, text.stderr) == (1, "")
    assert text.stdout.decode() == (
        f"SGLang of unknown version in {base}: the tree is not patched; "
        "run sgl-npu-patch apply first\n"
    )
    done = run("verify", base, "--format", "json")
    assert done.code == 1
    assert done.statuses["sampler"] == "pending"
    (check,) = done.report["checks"]
    assert (check["id"], check["verdict"]) == ("series.is_applied", "fail")
    assert executed.asked == []


def test_checks_that_are_named_run_on_an_unpatched_tree(base: Path) -> None:
    only = [part for seam in SERIES for part in ("--only", seam)]
    done = run("verify", base, "--static", *only, "--format", "json")
    failed = [c["id"] for c in done.report["checks"] if c["verdict"] == "fail"]
    assert [f"{seam}.in_place" for seam in SERIES if f"{seam}.in_place" not in failed] == []


def test_a_half_patched_tree_fails_in_the_seams_that_lack(base: Path) -> None:
    assert run("apply", base, "--skip", "launch_guards").code == 0
    done = run("verify", base, "--static", "--format", "json")
    failed = {check["seam"] for check in done.report["checks"] if check["verdict"] == "fail"}
    assert failed == {"launch_guards"}


def test_a_conflict_is_a_failure(tmp_path: Path) -> None:
    text = ("_sample_from_logits", "_draw_from_logits")
    tree = lay_out(edited(SAMPLER, text, count=2), tmp_path)
    done = run("verify", tree, "--static", "--format", "json", "--only", "sampler.in_place")
    assert done.code == 1
    (check,) = done.report["checks"]
    assert check["action"]
    assert done.statuses["sampler"] == "conflict"


def test_a_file_that_does_not_parse_is_a_failure_of_the_seams_that_read_it(tmp_path: Path) -> None:
    tree = lay_out(edited(SAMPLER, ("        if simple:\n", "        if simple\n")), tmp_path)
    done = run("verify", tree, "--static", "--format", "json")
    assert done.code == 1
    checks = {check["id"]: check for check in done.report["checks"]}
    assert "sampler.compiles" in checks
    for check in checks.values():
        assert check["site"]["path"] == f"sglang/{SAMPLER}"
        assert check["site"]["line"] > 0
    assert done.report["outcomes"] == []
    # The other commands refuse it as before.
    assert run("status", tree).code == 4


def test_comparison_with_the_unpatched_tree(tree: Path, base: Path) -> None:
    done = run("verify", tree, "--static", "--base", base, "--format", "json")
    assert done.code == 0
    ids = [check["id"] for check in done.report["checks"]]
    assert "sampler.unchanged_off_npu" in ids
    assert "series.changes_nothing_else" in ids
    assert len(set(ids)) == len(ids)


def test_what_is_executed_and_what_it_is_told(tree: Path, base: Path, executed: Runner) -> None:
    done = run("verify", tree, "--base", base, "--format", "json")
    assert done.code == 0
    ((groups, request),) = executed.asked
    assert groups == [group for group in GROUPS if group != "layers"]
    assert request == {
        "package": str((tree / "sglang").resolve()),
        "base": str((base / "sglang").resolve()),
        "left_out": {"attention_comment": "not-needed"},
        "native": False,
        "torch_npu": runner.SIMULATED,
        "only": [],
    }
    (check,) = [c for c in done.report["checks"] if c["kind"] == "behaviour"]
    assert check["site"]["path"] == f"sglang/{SAMPLER}"


def test_layers_are_run_when_asked_for(tree: Path, executed: Runner) -> None:
    assert run("verify", tree, "--layers").code == 0
    assert executed.asked[0][0][-1] == "layers"
    assert executed.asked[0][1]["base"] is None


def test_a_failed_behaviour_fails(tree: Path, executed: Runner) -> None:
    executed.results.append(behaviour("npu_ops.rebinds", "fail"))
    done = run("verify", tree)
    assert done.code == 1
    assert b"\nFAIL npu_ops.rebinds\n" in done.stdout


def test_only_a_seam(tree: Path, executed: Runner) -> None:
    done = run("verify", tree, "--only", "sampler", "--format", "json")
    ids = [check["id"] for check in done.report["checks"]]
    expected = [name for name in static.CHECKS if name.startswith("sampler.")]
    assert ids == [*expected, "sampler.draws"]
    assert executed.asked[0][1]["only"] == ["sampler"]


def test_only_a_check(tree: Path, executed: Runner) -> None:
    done = run("verify", tree, "--only", "npu_ops.unmodified", "--format", "json")
    assert [check["id"] for check in done.report["checks"]] == ["npu_ops.unmodified"]
    # Nothing of the tree is executed for a check of its text.
    assert executed.asked == []


@pytest.mark.parametrize("name", ["nothing", "sampler.unchanged_off_npu"])
def test_only_what_does_not_run(tree: Path, executed: Runner, name: str) -> None:
    done = run("verify", tree, "--only", name)
    assert (done.code, done.stdout) == (2, b"")
    assert name in done.stderr
    assert "--base" in done.stderr


def test_static_forbids_layers(tree: Path) -> None:
    assert run("verify", tree, "--static", "--layers").code == 2


def test_torch_is_missing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == "torch" else found(name))
    done = run("verify", tree)
    assert (done.code, done.stdout) == (4, b"")
    assert "sgl-npu-patch[verify]" in done.stderr
    assert "--static" in done.stderr
    assert run("verify", tree, "--static").code == 0


def test_what_is_no_tree_is_refused(tmp_path: Path, tree: Path) -> None:
    assert run("verify", tmp_path / "none", "--static").code == 4
    assert run("verify", tree, "--static", "--base", tmp_path / "none").code == 4
    assert run("verify", "", "--static").code == 2
    assert run("verify", tree, "--static", "--base", "").code == 2


def test_formats_for_servers(tree: Path, base: Path) -> None:
    for path, code in ((tree, 0), (base, 1)):
        done = run("verify", path, "--static", "--format", "junit")
        assert done.code == code
        assert done.stdout.startswith(b"<")
        done = run("verify", path, "--static", "--format", "sarif")
        assert done.code == code
        assert json.loads(done.stdout)["version"] == "2.1.0"


def test_copies_are_named(tree: Path) -> None:
    shutil.copytree(tree / "sglang", tree / "build" / "lib" / "sglang")
    done = run("verify", tree, "--static")
    assert done.code == 0
    assert "build/lib/sglang is another copy" in done.stderr


def test_sites_are_those_of_the_tree(tree: Path, executed: Runner) -> None:
    executed.results = [behaviour("unknown.check", "pass")]
    done = run("verify", tree, "--format", "json")
    assert done.report["checks"][-1]["site"] is None


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Give a repository with the unpatched tree, the patched one, and neither checked out."""
    folder = tmp_path / "repository"
    lay_out(original(), folder / "python")
    git(folder, "init", "--quiet")
    commit(folder)
    git(folder, "tag", "before")
    lay_out(patched(), folder / "python")
    commit(folder)
    git(folder, "tag", "after")
    lay_out(edited(SAMPLER, ("        if simple:\n", "        if simple\n")), folder / "python")
    return folder


def packed(folder: Path, archive: Path, above: str = "") -> Path:
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w") as written:
        for name, data in sources(folder).items():
            written.writestr(f"{above}{name}", data)
    return archive


def wheel(folder: Path, into: Path) -> Path:
    left_out = dict.fromkeys(f"sglang/{name}" for name in SOURCES)
    return build_wheel(into, {**left_out, **sources(folder)})


def as_in(checks: list[dict[str, Any]], above: str) -> list[dict[str, Any]]:
    """Give checks of a tree as they are of one that stands below a folder."""
    texts = json.dumps(checks).replace("sglang/srt/", f"{above}sglang/srt/")
    found: list[dict[str, Any]] = json.loads(texts)
    return found


def test_a_revision_is_checked_as_its_files_are(
    repository: Path, tree: Path, base: Path, executed: Runner
) -> None:
    expected = run("verify", tree, "--base", base, "--format", "json").report["checks"]
    before = snapshot(repository)
    options = ["--rev", "after", "--base-rev", "before", "--format", "json"]
    done = run("verify", repository, *options)
    assert (done.code, done.stderr) == (0, "")
    assert done.report["checks"] == as_in(expected, "python/")
    assert done.report["tree"]["revision"] == output(repository, "rev-parse", "after")
    # Neither the work tree nor anything of the user's is executed, and nothing is left behind.
    assert executed.found == [
        {"srt/__init__.py": b"", **files} for files in (patched(), original())
    ]
    request = executed.asked[-1][1]
    assert not any(Path(request[name]).exists() for name in ("package", "base"))
    assert snapshot(repository) == before


def test_a_revision_that_fails(repository: Path) -> None:
    done = run("verify", repository, "--rev", "before", "--static", "--only", "sampler")
    assert done.code == 1
    printed = done.stdout.decode()
    commit_id = output(repository, "rev-parse", "before")
    assert printed.startswith(f"SGLang of unknown version in {repository} at {commit_id[:12]}: ")
    assert "FAIL sampler.in_place" in printed
    assert "where    python/sglang/srt/" in printed


@pytest.mark.parametrize("kind", ["wheel", "zip"])
def test_an_archive_is_checked_as_its_files_are(
    tree: Path, base: Path, tmp_path: Path, executed: Runner, kind: str
) -> None:
    expected = run("verify", tree, "--base", base, "--format", "json").report["checks"]
    above = "" if kind == "wheel" else "sglang-0.0.1/"
    archive, original_archive = (
        wheel(folder, tmp_path / name)
        if kind == "wheel"
        else packed(folder, tmp_path / name / "sglang.zip", above)
        for name, folder in (("a", tree), ("b", base))
    )
    done = run("verify", archive, "--base", original_archive, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    assert done.report["checks"] == as_in(expected, above)
    assert not Path(executed.asked[-1][1]["package"]).exists()


def test_where_the_unpatched_tree_may_be(repository: Path, tree: Path) -> None:
    only = ["--static", "--only", "series.changes_nothing_else"]
    for path, options in (
        (repository, ["--rev", "after", "--base-rev", "before"]),
        (repository / "python", ["--rev", "after", "--base-rev", "HEAD~1"]),
        (tree, ["--base", str(repository), "--base-rev", "before"]),
    ):
        assert run("verify", path, *options, *only).code == 0
    git(repository, "reset", "--quiet", "--hard")
    assert run("verify", repository, "--base-rev", "before", *only).code == 0


def test_revisions_that_are_none(repository: Path, tree: Path, tmp_path: Path) -> None:
    archive = packed(tree, tmp_path / "tree.zip")
    for path, options, code, said in (
        (repository, ("--rev", ""), 2, "REV is empty"),
        (repository, ("--base-rev", ""), 2, "REV is empty"),
        (archive, ("--rev", "after"), 2, "only a git repository has revisions"),
        (archive, ("--base-rev", "after"), 2, "only a git repository has revisions"),
        (repository, ("--rev", "none"), 4, "'none' is no revision of this repository"),
        (tree, ("--base-rev", "before"), 4, "git"),
    ):
        done = run("verify", path, *options, "--static")
        assert (done.code, done.stdout) == (code, b"")
        assert said in done.stderr
