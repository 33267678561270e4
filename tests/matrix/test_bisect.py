from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.matrix.bisect import Bisection, bisect
from sgl_npu_patch.matrix.content import Options
from sgl_npu_patch.matrix.evaluate import Evaluator
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.reports import bisect_text, codec
from sgl_npu_patch.reports.formats import Target
from tests.engine.package import COMMON, SOURCES, run
from tests.matrix.histories import BROKEN, OTHER, Files, commit_of, graph, history

SEAM = "device_dispatch"
WHOLE = {COMMON: SOURCES[COMMON]}


@pytest.fixture
def evaluator() -> Iterator[Evaluator]:
    with Repositories() as repositories:
        yield Evaluator(Options(cache=False), repositories)


def search(
    evaluator: Evaluator, repository: Path, good: str, bad: str, seam: str | None = SEAM
) -> Bisection:
    return bisect(evaluator, str(repository), good, bad, seam)


def filler(number: int) -> dict[str, str]:
    return {OTHER: f"x = {number}\n"}


@pytest.mark.parametrize("place", [1, 2, 500, 737, 998, 999])
def test_one_of_a_thousand_commits(tmp_path: Path, evaluator: Evaluator, place: int) -> None:
    commits = [filler(n) for n in range(1000)]
    commits[place] = {COMMON: BROKEN}
    repository = history(tmp_path / "repository", commits)
    found = search(evaluator, repository, "main~999", "main", None)
    # The one needs the other.
    assert [change["seam"] for change in found.changes] == [SEAM, "batch_invariant"]
    for change in found.changes:
        assert change["commit"] == commit_of(repository, f"main~{999 - place}")
        assert (change["before"], change["after"]) == ("pending", "conflict")
        assert (change["subject"], change["date"][:4]) == (f"Change {place}", "2023")
    assert found.remarks == ()
    assert found.commits == 999
    assert found.judged <= 2 + math.ceil(math.log2(found.commits))


def test_diff_is_that_of_the_symbol(tmp_path: Path, evaluator: Evaluator) -> None:
    moved = f"y = 1\n\n\n{BROKEN.replace('is_npu', 'is_ascend')}"
    commits = [{}, {COMMON: moved, OTHER: "z = 1\n"}]
    repository = history(tmp_path / "repository", commits)
    (change,) = search(evaluator, repository, "main~1", "main").changes
    assert change["diff"].splitlines()[:5] == [
        f"--- a/python/sglang/{COMMON} get_dispatch_device_backend",
        f"+++ b/python/sglang/{COMMON} device_backend",
        "@@ -1,4 +1,4 @@",
        "-def get_dispatch_device_backend():",
        "+def device_backend():",
    ]
    assert "y = 1" not in change["diff"]
    assert "z = 1" not in change["diff"]
    assert "is_ascend" not in change["diff"]


def test_symbol_in_its_new_file(tmp_path: Path, evaluator: Evaluator) -> None:
    moved = "if True:\n    " + SOURCES[COMMON].replace("\n", "\n    ").replace("CUDA", "cuda")
    commits = [{}, {COMMON: "", "srt/utils/moved.py": f"{moved}\n"}]
    repository = history(tmp_path / "repository", commits)
    (change,) = search(evaluator, repository, "main~1", "main").changes
    assert f"--- a/python/sglang/{COMMON} get_dispatch_device_backend\n" in change["diff"]
    assert "+++ b/python/sglang/srt/utils/moved.py get_dispatch" in change["diff"]
    assert '+            key = "cuda"\n' in change["diff"]


def test_other_reasons_show_the_files_that_are_read(tmp_path: Path, evaluator: Evaluator) -> None:
    again = "\n\ndef get_dispatch_device_backend():\n    return 1\n"
    repository = history(tmp_path / "repository", [{}, {"srt/again.py": again, OTHER: "z = 1\n"}])
    (change,) = search(evaluator, repository, "main~1", "main").changes
    assert "+++ b/python/sglang/srt/again.py" in change["diff"]
    assert "z = 1" not in change["diff"]


def test_steps_are_all_listed(tmp_path: Path, evaluator: Evaluator) -> None:
    commits = [filler(n) for n in range(40)]
    commits[9] = {COMMON: BROKEN}
    commits[21] = gone()
    repository = history(tmp_path / "repository", commits)
    found = search(evaluator, repository, "main~39", "main")
    steps = [(change["before"], change["after"], change["commit"]) for change in found.changes]
    assert steps == [
        ("pending", "conflict", commit_of(repository, "main~30")),
        ("conflict", "missing", commit_of(repository, "main~18")),
    ]
    assert found.remarks == (f"{SEAM} changes 2 times on the way",)
    (change,) = search(evaluator, repository, "main~39", "main", None).changes
    assert (change["seam"], change["commit"]) == ("", steps[1][2])


def test_history_that_goes_back_and_forth_is_told(tmp_path: Path, evaluator: Evaluator) -> None:
    commits = [filler(n) for n in range(17)]
    for place, files in {2: {COMMON: BROKEN}, 3: WHOLE, 10: {COMMON: BROKEN}}.items():
        commits[place] = files
    commits[4], commits[8] = {COMMON: BROKEN}, WHOLE
    repository = history(tmp_path / "repository", commits)
    found = search(evaluator, repository, "main~16", "main")
    changed = {commit_of(repository, f"main~{16 - place}") for place in (2, 4, 10)}
    assert {change["commit"] for change in found.changes} <= changed


def test_what_does_not_fit_is_told(tmp_path: Path, evaluator: Evaluator) -> None:
    # Halving looks at 8 (changed), 4 (not), 6 (not), 7 (changed): 16 then is as it should be; so
    # a third status is put where the first step looks.
    commits = [filler(n) for n in range(17)]
    commits[3] = {COMMON: BROKEN}
    commits[8] = {**gone()}
    commits[9] = {**SOURCES, COMMON: BROKEN}
    repository = history(tmp_path / "repository", commits)
    found = search(evaluator, repository, "main~16", "main")
    assert [change["commit"] for change in found.changes] == [commit_of(repository, "main~13")]
    (remark,) = found.remarks
    assert remark == (
        f"{SEAM} is missing at {commit_of(repository, 'main~8')[:12]}, where conflict would fit: "
        "it changes more often than is listed"
    )


def gone() -> dict[str, str]:
    return {name: "" for name in SOURCES if name.startswith("srt/")}


def test_tree_that_is_refused_is_a_status(tmp_path: Path, evaluator: Evaluator) -> None:
    repository = history(tmp_path / "repository", [gone(), {}, {}, dict(SOURCES), {}])
    found = search(evaluator, repository, "main~4", "main", None)
    (change,) = found.changes
    assert (change["seam"], change["before"], change["after"]) == ("", "refused", "judged")
    assert change["commit"] == commit_of(repository, "main~1")
    assert f"+++ b/python/sglang/{COMMON}" in change["diff"]


Commits = dict[str, tuple[str, Files]]
BREAK = {COMMON: BROKEN}


def made(
    evaluator: Evaluator, repository: Path, good: str = "base"
) -> list[tuple[str, str, str, str]]:
    """Return each change as its subject, that of its merge, and the statuses around it."""
    found = search(evaluator, repository, good, "main")
    assert found.judged <= found.commits + 1
    names = {commit_of(repository, "m^0"): "m", "": ""}
    return [
        (each["subject"], names[each.get("merge", "")], each["before"], each["after"])
        for each in found.changes
    ]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_commit_on_the_side_that_was_merged(
    tmp_path: Path, evaluator: Evaluator, place: int
) -> None:
    """Main goes on beside the branch, and after the merge."""
    commits: Commits = {"base": ("", {}), "beside": ("base", filler(1))}
    for number in range(7):
        files = BREAK if number == place else {"srt/side.py": f"x = {number}\n"}
        commits[f"b{number}"] = (f"b{number - 1}" if number else "base", files)
    commits |= {"m": ("beside b6", BREAK), "last": ("m", filler(2))}
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [(f"b{place}", "m", "pending", "conflict")]
    (change,) = search(evaluator, repository, "base", "main").changes
    assert change["commit"] == commit_of(repository, f"b{place}")
    assert "-def get_dispatch_device_backend():" in change["diff"]
    text = bisect_text.render(codec.bisect_document([change], [], commits=10, judged=5), Target())
    assert f"  subject  b{place}\n  merge    {commit_of(repository, 'm^0')}\n" in text


def test_merge_that_makes_the_change_itself(tmp_path: Path, evaluator: Evaluator) -> None:
    commits: Commits = {
        "base": ("", {}),
        "beside": ("base", filler(1)),
        "b": ("base", {"srt/side.py": "x = 1\n"}),
        "m": ("beside b", {"srt/side.py": "x = 1\n", **BREAK}),
    }
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [("m", "", "pending", "conflict")]


def test_merge_within_the_side(tmp_path: Path, evaluator: Evaluator) -> None:
    """The branch merged another one, as it also merged main before."""
    commits: Commits = {
        "base": ("", {}),
        "beside": ("base", filler(1)),
        "b1": ("base", {"srt/side.py": "x = 1\n"}),
        "back": ("b1 beside", filler(1)),
        "inner1": ("b1", BREAK),
        "inner2": ("inner1", {"srt/inner.py": "x = 1\n"}),
        "b2": ("back inner2", BREAK),
        "b3": ("b2", {"srt/side.py": "x = 2\n"}),
        "m": ("beside b3", BREAK),
    }
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [("inner1", "m", "pending", "conflict")]


def test_side_that_changes_twice(tmp_path: Path, evaluator: Evaluator) -> None:
    commits: Commits = {
        "base": ("", {}),
        "b1": ("base", BREAK),
        "b2": ("b1", filler(1)),
        "b3": ("b2", gone()),
        "m": ("base b3", gone()),
    }
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [
        ("b1", "m", "pending", "conflict"),
        ("b3", "m", "conflict", "missing"),
    ]


def test_merge_that_undoes_what_main_had(tmp_path: Path, evaluator: Evaluator) -> None:
    commits: Commits = {
        "root": ("", {}),
        "base": ("root", BREAK),
        "b": ("root", filler(1)),
        "m": ("base b", {**WHOLE, **filler(1)}),
    }
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [("m", "", "conflict", "pending")]


def test_merge_of_three_and_of_unrelated_histories(tmp_path: Path, evaluator: Evaluator) -> None:
    commits: Commits = {
        "base": ("", {}),
        "b1": ("base", filler(1)),
        "b2": ("base", BREAK),
        "other": ("", BREAK),
        "m": ("base other b1 b2", BREAK),
    }
    repository = graph(tmp_path / "repository", commits)
    assert made(evaluator, repository) == [("b2", "m", "pending", "conflict")]


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("main", "main~1", "main~1 has no commits that main lacks: are --good and --bad swapped"),
        ("main~2", "main~1", "device_dispatch is pending both at main~2 and at main~1"),
    ],
)
def test_nothing_to_find(
    tmp_path: Path, evaluator: Evaluator, good: str, bad: str, said: str
) -> None:
    repository = history(tmp_path / "repository", [{}, filler(1), {COMMON: BROKEN}])
    with pytest.raises(UsageError, match=said):
        search(evaluator, repository, good, bad)


def test_unknown_revision(tmp_path: Path, evaluator: Evaluator) -> None:
    repository = history(tmp_path / "repository", [{}, {}])
    with pytest.raises(Refused, match="'x' is no revision"):
        search(evaluator, repository, "x", "main")


def test_command(tmp_path: Path) -> None:
    repository = history(tmp_path / "repository", [{}, filler(1), {COMMON: BROKEN}, filler(2)])
    done = run("bisect", repository, "--good", "main~3", "--bad", "main", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    change, _ = done.report["changes"]
    assert list(change) == ["seam", "commit", "date", "subject", "before", "after", "diff"]
    text = run("bisect", repository, "--good", "main~3", "--bad", "main").stdout.decode()
    assert text.startswith(f"{SEAM}: pending -> conflict\n  commit   {change['commit']}\n")
    assert "\n-def get_dispatch_device_backend():\n" in text
    same = run("bisect", repository, "--good", "main~3", "--bad", "main~2", "--seam", SEAM)
    assert (same.code, same.stdout) == (2, b"")
    assert "there is nothing to find" in same.stderr
    wrong = run("bisect", repository, "--good", "main~3", "--bad", "main", "--seam", "x")
    assert (wrong.code, "no such seam: x" in wrong.stderr) == (2, True)
