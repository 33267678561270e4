from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.repository import open_repository
from sgl_npu_patch.matrix.content import ContentEvaluator, Options
from sgl_npu_patch.matrix.evaluate import BUG, Evaluation, Evaluator
from sgl_npu_patch.matrix.processes import evaluate_each
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.revisions import select_revisions
from sgl_npu_patch.matrix.run import evaluate_all
from sgl_npu_patch.matrix.selection import select_folders
from sgl_npu_patch.matrix.trees import TreeRef
from tests.engine.package import ARGUMENTS, COMMON, MODE, SAMPLER, SOURCES, build, run
from tests.matrix.histories import BROKEN, OTHER, Files, commit_of, history

PLAIN = Options(cache=False)
GONE = {name: "" for name in SOURCES if name.startswith("srt/")}
STEPS: Sequence[Files] = (
    {OTHER: "x = 1\n"},
    {OTHER: "def get_dispatch_device_backend(): pass\n"},
    {COMMON: BROKEN},
    {ARGUMENTS: "def broken(:\n"},
    {MODE: SOURCES[MODE].replace("print", "str")},
    {SAMPLER: SOURCES[SAMPLER].replace("return 0", "return 1")},
    {"srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py": "foreign\n"},
    GONE,
    SOURCES,
    {OTHER: None},
    {COMMON: None},
    {"version.py": '__version__ = "0.0.2"\n'},
    {"README.md": "get_dispatch_device_backend"},
    {"/docs/number.py": "get_dispatch_device_backend"},
    {"/build/lib/sglang/srt/x.py": ""},
    {"/python/pyproject.toml": "[project]\n"},
)


def evaluated(refs: Sequence[TreeRef], options: Options, jobs: int = 1) -> list[dict[str, Any]]:
    with Repositories() as repositories:
        results = evaluate_all(Evaluator(options, repositories), refs, jobs, lambda done: None)
    assert [result["name"] for result in results] == [ref.name for ref in refs]
    return results


def all_of(repository: Path) -> list[TreeRef]:
    with open_repository(repository, PROJECT) as opened:
        return list(select_revisions(opened, ["t*"]))


def range_of(repository: Path) -> list[TreeRef]:
    with open_repository(repository, PROJECT) as opened:
        return list(select_revisions(opened, ["t0..main"]))


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.sampled_from(range(len(STEPS))), min_size=1, max_size=12))
def test_results_depend_on_nothing_but_the_trees(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(folder / "cache"))
    commits = [{}, *(STEPS[step] for step in steps)]
    tags = {f"t{number}": number for number in range(len(commits))}
    repository = history(folder / "repository", commits, tags)
    refs = all_of(repository)
    expected = [evaluated([ref], PLAIN)[0] for ref in refs]
    assert evaluated(refs, PLAIN) == expected
    assert evaluated(refs, Options()) == expected
    assert evaluated(refs, Options()) == expected
    assert evaluated(refs[::-1], Options()) == expected[::-1]
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(folder / "other"))
    assert evaluated(refs, Options(), jobs=3) == expected
    assert evaluated(refs, PLAIN, jobs=2) == expected
    # Commits of a range are compared with the ones before them, and most are not opened.
    ranged = range_of(repository)
    by_commit = {result["tree"]["revision"]: result for result in expected}
    expected = [by_commit[each.revision] | {"name": each.name} for each in ranged]
    assert evaluated(ranged, PLAIN) == expected
    assert evaluated(ranged, Options()) == expected
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(folder / "third"))
    assert evaluated(ranged, Options(), jobs=3) == expected
    assert evaluated(ranged, Options(), jobs=3) == expected


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"/docs/number.py": "get_dispatch_device_backend"}, 1),
        ({"/python/pyproject.toml": ""}, 1),
        ({"/python/sglang/README.md": "get_dispatch_device_backend"}, 1),
        ({OTHER: "x = 1\n"}, 1),
        ({OTHER: "def get_dispatch_device_backend(): pass\n"}, 2),
        ({COMMON: SOURCES[COMMON] + "\n"}, 2),
        ({"version.py": '__version__ = "0.0.2"\n'}, 2),
        ({SAMPLER: None}, 2),
        ({"/build/lib/sglang/srt/x.py": ""}, 2),
    ],
)
def test_commits_that_touch_nothing_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files, count: int, *, cache: bool
) -> None:
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path / "cache"))
    repository = history(tmp_path / "repository", [{}, {"README.md": ""}, files], {"t0": 0})
    evaluate = Evaluator.evaluate
    with mock.patch.object(Evaluator, "evaluate", autospec=True, side_effect=evaluate) as opened:
        evaluated(range_of(repository), Options(cache=cache))
    assert opened.call_count == count


def test_versions_are_those_of_tags(tmp_path: Path) -> None:
    """Where no file states them: of each commit its own, also of those that are not opened."""
    commits: list[Files] = [
        {},
        {"version.py": None},
        {"/docs/x.py": "x = 1\n"},
        {OTHER: "x = 1\n"},
        {COMMON: BROKEN},
        {"version.py": '__version__ = "9"\n'},
    ]
    tags = {"t0": 0, "x1": 1, "v0.5.9": 2, "v0.6": 5}
    repository = history(tmp_path / "repository", commits, tags)
    after = [f"0.5.9-{n}-g{commit_of(repository, f'main~{3 - n}')[:7]}" for n in (1, 2)]
    for options in (PLAIN, Options(), Options()):
        found = [result["tree"]["version"] for result in evaluated(range_of(repository), options)]
        assert found == [None, "0.5.9", *after, "9"]


def test_what_is_broken_stops_nothing(tmp_path: Path) -> None:
    build(tmp_path / "good")
    build(tmp_path / "old", server_args="", sampler="", batch_invariant_ops="")
    build(tmp_path / "torn", server_args=SOURCES[ARGUMENTS] + "x = (\n")
    (tmp_path / "empty").mkdir()
    folders = [str(tmp_path / name) for name in ("empty", "torn", "none", "good", "old")]
    for jobs in (1, 2):
        results = evaluated([*select_folders(folders)], PLAIN, jobs)
        said = [result.get("error", {}).get("message", "") for result in results]
        assert "not a tree of SGLang" in said[0]
        assert said[1].startswith("python/sglang/srt/server_args.py:20: does not parse")
        assert "does not exist" in said[2]
        assert said[3] == ""
        assert said[4].startswith("this SGLang has no deterministic inference")
        assert [len(result["outcomes"]) for result in results] == [0, 0, 0, len(SERIES), 0]


def test_bug_in_one_tree_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "one")
    build(tmp_path / "two", layout="sglang")

    def evaluate(self: object, tree: Any, opened: object) -> bytes:
        if tree.package.parts[0] == "sglang":
            raise AssertionError("wrong")
        return b"{}"

    monkeypatch.setattr(ContentEvaluator, "evaluate", evaluate)
    refs = list(select_folders([str(tmp_path / "two"), str(tmp_path / "one")]))
    first, second = evaluated(refs, PLAIN)
    assert first["error"] == {"message": BUG}
    assert "error" not in second
    assert "AssertionError: wrong" in capfd.readouterr().err


def test_equal_packages_are_evaluated_once(tmp_path: Path) -> None:
    repository = history(tmp_path / "repository", [{}, {}, {}], {"t0": 0, "t1": 1, "t2": 2})
    with mock.patch.object(ContentEvaluator, "evaluate", autospec=True) as evaluate:
        evaluate.return_value = b"{}"
        results = evaluated(all_of(repository), PLAIN)
    assert evaluate.call_count == 1
    assert [result["tree"]["revision"] for result in results] == [
        commit_of(repository, name) for name in ("t0", "t1", "t2")
    ]


def test_static_checks_look_at_the_patched_tree(tmp_path: Path) -> None:
    repository = history(tmp_path / "repository", [{}, {COMMON: BROKEN}], {"t0": 0, "t1": 1})
    for cache in (False, True, True):
        good, bad = evaluated(all_of(repository), Options(checks="static", cache=cache))
        verdicts = {check["id"]: check["verdict"] for check in good["checks"]}
        assert verdicts["device_dispatch.in_place"] == "pass"
        assert verdicts["device_dispatch.answers_npu"] == "pass"
        assert bad["checks"] == []


def test_diff_is_that_of_the_command(tmp_path: Path) -> None:
    repository = history(tmp_path / "repository", [{}], {"t0": 0})
    expected = run("diff", repository, "--rev", "t0").stdout.decode()
    for cache in (False, True, True):
        (result,) = evaluated(all_of(repository), Options(diff=True, cache=cache))
        assert result["diff"] == expected
    assert "diff" not in evaluated(all_of(repository), Options())[0]


def test_process_that_dies_loses_one_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that meets the tree ends at once, and another goes on with its share."""
    for name in "abcdef":
        build(tmp_path / name)
    script = tmp_path / "sitecustomize.py"
    script.write_text(
        "import os, sgl_npu_patch.engine.trees.open as m\n"
        "real = m.open_tree\n"
        "def dies(path, project):\n"
        "    if path.name == 'b': os._exit(9)\n"
        "    return real(path, project)\n"
        "m.open_tree = dies\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found: dict[int, Evaluation] = {}
    refs = list(select_folders(str(tmp_path / name) for name in "abcdef"))
    with Repositories() as repositories:
        evaluate_each(Evaluator(PLAIN, repositories), refs, 2, found.__setitem__)
    assert sorted(found) == list(range(6))
    assert [place for place in found if "error" in found[place].document] == [1]
    assert "ended before it was done" in found[1].document["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        build(tmp_path / name)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, time, sgl_npu_patch.engine.trees.open as m\n"
        # What runs in the background of a shell ignores it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def waits(path, project):\n"
        f"    open({str(tmp_path)!r} + f'/pid{{os.getpid()}}', 'w').close()\n"
        "    time.sleep(600)\n"
        "m.open_tree = waits\n"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-m", "sgl_npu_patch", "matrix", "--jobs", "2", "--no-cache"]
    for name in "abcd":
        command += ["--trees", str(tmp_path / name)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 60
        while len(pids := [int(path.name[3:]) for path in tmp_path.glob("pid*")]) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (128 + number, b"")
    assert err.decode().startswith(f"sgl-npu-patch: interrupted by signal {int(number)}")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("seconds", [0.3, 0.5, 0.8])
def test_killed_run_leaves_no_wrong_answer(tmp_path: Path, seconds: float) -> None:
    commits = [{}, *STEPS, *STEPS[::-1]]
    tags = {f"t{number:02}": number for number in range(len(commits))}
    refs = all_of(history(tmp_path / "repository", commits, tags))
    expected = evaluated(refs, PLAIN)
    command = [sys.executable, "-m", "sgl_npu_patch", "matrix", str(tmp_path / "repository")]
    process = subprocess.Popen([*command, "--revs", "t*"], stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    process.wait()
    assert evaluated(refs, Options()) == expected
    assert evaluated(refs, Options()) == expected
