from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.commands import plans
from sgl_npu_patch.commands.trees import planned
from sgl_npu_patch.engine.vendor import render
from tests.engine.package import (
    ADDED,
    ARGUMENTS,
    CHANGE,
    CHANGED,
    CHANGED_AND_ADDED,
    COMMON,
    MODE,
    VENDORED,
    WRITTEN,
    build,
    contents,
    run,
    snapshot,
)
from tests.engine.repositories import git
from tests.engine.test_plan import EXPECTED
from tests.upstream.program import SEAMS

CONFLICT = "def is_npu():\n    return False\n"
LAYOUTS = ("python/sglang", "sglang", ".")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(statuses: Mapping[str, str]) -> dict[str, str]:
    """Give statuses as the run says them that wrote what was pending."""
    return {k: "applied" if v == "pending" else v for k, v in statuses.items()}


def test_report_is_relative_to_path(tmp_path: Path, layout: str) -> None:
    build(tmp_path, layout)
    done = run("apply", tmp_path, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    prefix = "" if layout == "." else f"{layout}/"
    assert done.report["changed"] == [f"{prefix}{name}" for name in CHANGED]
    assert done.report["added"] == [f"{prefix}{name}" for name in ADDED]
    assert done.report["tree"] == {"path": str(tmp_path), "version": "0.0.1", "revision": None}
    assert done.statuses == written(EXPECTED)
    for outcome in done.report["outcomes"]:
        for site in outcome["sites"]:
            assert set(site) == {"path", "line", "symbol"}
            assert (tmp_path / site["path"]).is_file()


def test_only_what_is_reported_was_written(tmp_path: Path) -> None:
    package = build(tmp_path)
    before = contents(package)
    assert run("apply", tmp_path).code == 0
    after = contents(package)
    assert tuple(name for name in after if after[name] != before.get(name)) == WRITTEN
    assert not list(package.rglob(".*"))


def test_text_report(tmp_path: Path) -> None:
    build(tmp_path)
    done = run("apply", tmp_path)
    said = done.stdout.decode()
    assert said.startswith(f"SGLang 0.0.1 in {tmp_path}: {CHANGED_AND_ADDED}\n")
    for seam, status in written(EXPECTED).items():
        assert [line for line in said.splitlines() if line.split()[:2] == [seam, status]]


def test_other_copies_are_left_alone_and_named(tmp_path: Path) -> None:
    build(tmp_path, "sglang")
    copy = build(tmp_path, "build/lib/sglang")
    before = snapshot(copy)
    done = run("apply", tmp_path, "--format", "json")
    assert done.code == 0
    assert done.report["copies"] == ["build/lib/sglang"]
    assert done.stderr == (
        "sgl-npu-patch: warning: build/lib/sglang is another copy of the package, which is "
        "neither examined nor patched: only sglang is\n"
    )
    assert snapshot(copy) == before


def test_second_run_touches_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    assert run("apply", tmp_path).code == 0
    before = snapshot(tmp_path)
    again = run("apply", tmp_path, "--format", "json")
    assert again.code == 0
    assert again.report["changed"] == again.report["added"] == []
    assert set(again.statuses.values()) == {"already", "not-needed"}
    assert snapshot(tmp_path) == before
    assert b"nothing to change" in run("apply", tmp_path).stdout


def test_check_writes_nothing_and_foretells(tmp_path: Path) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    check = run("apply", tmp_path, "--check", "--format", "json")
    assert check.code == 1
    assert f"would {CHANGE}".encode() in run("apply", tmp_path, "--check").stdout
    assert snapshot(tmp_path) == before
    applied = run("apply", tmp_path, "--format", "json").report
    assert applied["outcomes"] == [
        outcome | {"status": written({"": outcome["status"]})[""]}
        for outcome in check.report["outcomes"]
    ]
    for key in ("changed", "added", "copies"):
        assert applied[key] == check.report[key]
    assert run("apply", tmp_path, "--check").code == 0


def test_diff_beside_the_report(tmp_path: Path) -> None:
    build(tmp_path)
    diff = run("diff", tmp_path).stdout
    text = run("apply", tmp_path, "--check", "--diff").stdout
    assert text.endswith(b"\n" + diff)
    document = run("apply", tmp_path, "--check", "--diff", "--format", "json")
    assert document.report["diff"].encode() == diff


def test_no_diff_is_added_to_a_report_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a document of another format it would make both unreadable."""
    build(tmp_path)
    monkeypatch.setattr(plans, "render", lambda *_: "report")
    with planned(str(tmp_path), None, None, None) as (tree, plan):
        text = list(plans.report(tree, plan, "text", with_diff=True))
        assert text == ["report", "\n", plans.diff(tree, plan)]
        assert list(plans.report(tree, plan, "sarif", with_diff=True)) == ["report"]


@pytest.mark.parametrize("options", [[], ["--check"], ["--diff"], ["--strict"], ["--allow-dirty"]])
def test_conflict_writes_nothing(tmp_path: Path, options: list[str]) -> None:
    build(tmp_path, common=CONFLICT)
    before = snapshot(tmp_path)
    text = run("apply", tmp_path, *options)
    assert (text.code, text.stderr) == (3, "")
    assert b"conflicts, nothing is written" in text.stdout
    assert b"conflict in device_dispatch" in text.stdout
    done = run("apply", tmp_path, "--format", "json", *options)
    assert done.code == 3
    assert done.statuses["device_dispatch"] == "conflict"
    assert done.report["changed"] == done.report["added"] == []
    for outcome in done.report["outcomes"]:
        assert (outcome["status"] == "conflict") == ("evidence" in outcome)
        if "evidence" in outcome:
            names = {"sought", "expected", "found", "where", "nearest", "action"}
            assert set(outcome["evidence"]) == names
    assert snapshot(tmp_path) == before


def test_strict_is_about_gaps_and_withheld(tmp_path: Path) -> None:
    build(tmp_path)
    assert run("apply", tmp_path, "--strict").code == 0
    assert run("apply", tmp_path, "--strict").code == 0


def test_strict_names_what_is_withheld(tmp_path: Path) -> None:
    package = build(tmp_path)
    arguments = package / ARGUMENTS
    name = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"
    gate = f"""\
            if self.attention_backend not in {name}:
                self.disable_radix_cache = True
            self.last = True
"""
    text = arguments.read_text("utf-8").replace("            self.last = True\n", gate)
    arguments.write_text(f'{name} = ["one"]\n{text}', encoding="utf-8")
    done = run("apply", tmp_path, "--strict", "--format", "json")
    assert done.statuses["radix_cache"] == "withheld"
    assert done.code == 1
    assert run("apply", tmp_path).code == 0
    assert b"withheld radix_cache: prefill" in run("apply", tmp_path).stdout


def test_only_and_skip(tmp_path: Path) -> None:
    build(tmp_path)
    some = ["--only", "npu_ops", "--only", "radix_cache", "--only", "backend_lists"]
    only = run("apply", tmp_path, "--check", "--format", "json", *some)
    assert list(only.statuses) == ["backend_lists", "radix_cache", "npu_ops"]
    both = run("apply", tmp_path, "--check", "--format", "json", *some, "--skip", "npu_ops")
    assert list(both.statuses) == ["backend_lists", "radix_cache"]
    skip = run("apply", tmp_path, "--format", "json", "--skip", "launch_guards")
    assert list(skip.statuses) == [name for name in SEAMS if name != "launch_guards"]
    added = [name for name in ADDED if "launch_guards" not in name]
    assert skip.report["added"] == [f"python/sglang/{name}" for name in added]
    rest = run("apply", tmp_path, "--format", "json")
    assert {n for n, status in rest.statuses.items() if status == "applied"} == {"launch_guards"}


def test_piecewise_is_the_same_as_at_once(tmp_path: Path) -> None:
    build(tmp_path / "once")
    build(tmp_path / "pieces")
    assert run("apply", tmp_path / "once").code == 0
    groups: tuple[list[str], ...] = (
        ["npu_ops", "launch_guards"],
        ["radix_cache", "backend_lists"],
        [],
    )
    for group in groups:
        chosen = [part for name in group for part in ("--only", name)]
        assert run("apply", tmp_path / "pieces", *chosen).code == 0
    assert contents(tmp_path / "once") == contents(tmp_path / "pieces")


@pytest.mark.parametrize(
    ("encode", "odd"),
    [
        pytest.param(lambda text: text.replace("\n", "\r\n").encode(), b"\r\n", id="CRLF"),
        pytest.param(lambda text: b"\xef\xbb\xbf" + text.encode(), b"\xef\xbb\xbf", id="BOM"),
        pytest.param(lambda text: text.rstrip("\n").encode(), b"", id="no final newline"),
        pytest.param(
            lambda text: b"# coding: latin-1\n" + text.encode("latin-1"), b"latin-1", id="latin-1"
        ),
        pytest.param(lambda text: text.replace("    ", "\t").encode(), b"\t", id="tabs"),
        pytest.param(lambda text: f"\x0c\n{text}\x0c\n".encode(), b"\x0c", id="form feeds"),
        pytest.param(
            lambda text: f"{text}\n'''\r\x85\u2028'''\n".encode(),
            b"\r\xc2\x85",
            id="odd separators",
        ),
    ],
)
def test_bytes_around_the_edits_stay(tmp_path: Path, encode: object, odd: bytes) -> None:
    assert callable(encode)
    package = build(tmp_path)
    for name in CHANGED:
        (package / name).write_bytes(encode((package / name).read_text("utf-8")))
    before = {name: (package / name).read_bytes() for name in CHANGED}
    done = run("apply", tmp_path)
    assert done.code == 0, done.stdout.decode()
    for name in CHANGED:
        after = (package / name).read_bytes()
        assert after != before[name]
        assert odd in after
        compile(after, name, "exec", dont_inherit=True)
        kept = [line for line in before[name].splitlines(keepends=True) if line.strip()]
        if b"one" not in after or not name.endswith("args.py"):
            # An `if` may become the `elif` of ours.
            missing = [
                line
                for line in kept
                if line not in after and line.replace(b"if", b"elif", 1) not in after
            ]
            assert missing == []
        if b"\r\n" in before[name]:
            assert after.count(b"\n") == after.count(b"\r\n")
    assert run("apply", tmp_path, "--check").code == 0


@pytest.mark.parametrize(
    "name",
    ["two words", "caf\u00e9", "line\nbreak", "-dash", "quo'te\"", "\\", "$(x)", "[1]", "%s"],
)
def test_path_with_odd_characters(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    done = run("apply", "--format", "json", "--diff", "--", name)
    assert (done.code, done.stderr) == (0, "")
    assert done.report["tree"]["path"] == name
    text = run("apply", "--", name)
    assert (text.code, text.stderr) == (0, "")
    assert name in text.stdout.decode()


def test_path_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    build(path)
    git(tmp_path, "init", "--quiet")
    document = run("status", path, "--format", "json")
    assert json.loads(document.stdout)["tree"]["path"] == str(path)
    done = run("apply", path, "--diff", "--allow-dirty")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith(b"SGLang 0.0.1 in " + os.fsencode(path))
    assert rb'--- "a/caf\351/python/sglang/' in done.stdout


@pytest.mark.parametrize("dirty", ["modified", "staged", "untracked", "not committed at all"])
def test_uncommitted_change_is_refused(tmp_path: Path, dirty: str) -> None:
    package = build(tmp_path)
    git(tmp_path, "init", "--quiet")
    if dirty != "not committed at all":
        git(tmp_path, "add", "--all")
        if dirty == "untracked":
            git(tmp_path, "rm", "--quiet", "--cached", f"python/sglang/{COMMON}")
        git(tmp_path, "commit", "--quiet", "--message", "first")
    if dirty in ("modified", "staged"):
        (package / COMMON).write_bytes((package / COMMON).read_bytes() + b"# mine\n")
    if dirty == "staged":
        git(tmp_path, "add", "--all")
    before = snapshot(package)
    refused = run("apply", tmp_path)
    assert (refused.code, refused.stdout) == (4, b"")
    # Of many files the first are named.
    named = MODE if dirty == "not committed at all" else COMMON
    assert f"python/sglang/{named}" in refused.stderr
    assert "--allow-dirty" in refused.stderr
    assert snapshot(package) == before
    for harmless in (["status"], ["diff"], ["apply", "--check"]):
        assert run(*harmless, tmp_path).code in (0, 1)
    assert run("apply", tmp_path, "--allow-dirty").code == 0


def test_change_to_another_file_and_ignored_tree(tmp_path: Path) -> None:
    package = build(tmp_path)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("python/\n", encoding="utf-8")
    (package / "notes.txt").touch()
    assert run("apply", tmp_path).code == 0


def test_outdated_module_that_was_never_committed(tmp_path: Path) -> None:
    package = build(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    assert run("apply", tmp_path).code == 0
    git(tmp_path, "commit", "--quiet", "--all", "--message", "second")
    old = render(PROJECT, "npu_ops").replace(
        b"sgl-npu-patch " + __version__.encode(), b"sgl-npu-patch 0.0.1"
    )
    (package / VENDORED / "npu_ops.py").write_bytes(old)
    refused = run("apply", tmp_path)
    assert refused.code == 4
    assert f"{VENDORED}/npu_ops.py" in refused.stderr
    refreshed = run("apply", tmp_path, "--allow-dirty", "--format", "json")
    assert refreshed.report["changed"] == [f"python/sglang/{VENDORED}/npu_ops.py"]
    assert [o["seam"] for o in refreshed.report["outcomes"] if o["outdated"]] == ["npu_ops"]


def test_path_inside_the_work_tree_through_a_link(tmp_path: Path) -> None:
    package = build(tmp_path / "repository")
    git(tmp_path / "repository", "init", "--quiet")
    (tmp_path / "link").symlink_to(package)
    refused = run("apply", tmp_path / "link")
    assert refused.code == 4
    assert f"python/sglang/{MODE}" in refused.stderr
    git(tmp_path / "repository", "add", "--all")
    git(tmp_path / "repository", "commit", "--quiet", "--message", "first")
    assert run("apply", tmp_path / "link").code == 0
    made = sum(status == "pending" for status in EXPECTED.values())
    assert run("status", package).stdout.count(b" already ") == made


@pytest.mark.parametrize("what", [COMMON, "srt/utils", "srt/hardware_backend", ""])
@pytest.mark.parametrize("repository", [False, True], ids=["no git", "git"])
def test_link_out_of_the_tree(tmp_path: Path, what: str, repository: bool) -> None:
    tree = tmp_path / "tree"
    package = build(tree)
    if repository:
        git(tree, "init", "--quiet")
        (tree / ".gitignore").write_text("*\n", encoding="utf-8")
    place = package / what
    if what == "srt/hardware_backend":
        (tmp_path / "outside").mkdir()
    else:
        place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    before = snapshot(tmp_path)
    refused = run("apply", tree)
    assert refused.code in (3, 4)
    assert "Traceback" not in refused.stderr
    if refused.code == 4:
        assert "symbolic link leads out of the tree" in refused.stderr
    assert snapshot(tmp_path) == before


def test_link_inside_the_tree(tmp_path: Path) -> None:
    package = build(tmp_path)
    (package / MODE).rename(package / "real.txt")
    (package / MODE).symlink_to(package / "real.txt")
    assert run("apply", tmp_path).code == 0
    assert (package / MODE).is_symlink()
    assert b"npu_ops.enable" in (package / "real.txt").read_bytes()


def test_names_that_only_resemble_json_options(tmp_path: Path) -> None:
    build(tmp_path)
    wrong = run("apply", tmp_path, "--format", "yaml")
    assert (wrong.code, wrong.stdout) == (2, b"")


def test_warnings_and_progress_stay_out_of_json(tmp_path: Path) -> None:
    build(tmp_path, sampler=None)
    done = run("apply", tmp_path, "--format", "json")
    assert done.code == 3
    assert isinstance(json.loads(done.stdout), dict)
