"""Check that `--series` chooses what every command is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.package import ARGUMENTS, SOURCES, build, run, snapshot
from tests.engine.test_plan import EXPECTED
from tests.engine.wheels import VERSION, build_wheel
from tests.helpers import native_ops
from tests.upstream.program import HARDENING

SEAM = "hardened_operators"
RADIX = 'RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3"]\n'
NOT_NEEDED = dict.fromkeys(HARDENING, "not-needed")


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """Build a package with upstream's own batch-invariant mode."""
    package = build(tmp_path, server_args=f"{SOURCES[ARGUMENTS]}{RADIX}")
    for name, text in native_ops().items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(text.encode() if isinstance(text, str) else text or b"")
    return tmp_path


@pytest.mark.parametrize(
    ("series", "statuses"),
    [
        ("deterministic", EXPECTED),
        ("hardening", NOT_NEEDED),
        ("all", NOT_NEEDED | EXPECTED),
    ],
)
def test_seams_of_the_series_are_judged_in_its_order(
    tmp_path: Path, series: str, statuses: dict[str, str]
) -> None:
    build(tmp_path)
    done = run("status", tmp_path, "--series", series, "--format", "json")
    assert (done.code, list(done.statuses.items())) == (0, list(statuses.items()))


def test_a_native_tree_is_hardened_once(native: Path) -> None:
    options = ("--series", "hardening", "--format", "json")
    assert run("apply", native, "--check", *options).code == 1
    foretold = run("diff", native, "--series", "hardening").stdout
    assert b"+        _LIB = npu_ops.enable(key, enable_bmm)\n" in foretold
    done = run("apply", native, *options)
    assert (done.code, done.statuses[SEAM]) == (0, "applied")
    before = snapshot(native)
    again = run("apply", native, *options)
    assert (again.code, again.statuses[SEAM]) == (0, "already")
    assert snapshot(native) == before
    assert run("diff", native, "--series", "hardening").stdout == b""


def test_what_one_series_closes_is_no_gap_of_the_other(native: Path) -> None:
    def gaps(series: str) -> list[str]:
        done = run("status", native, "--series", series, "--format", "json")
        return done.gaps.get("batch_invariant", [])

    assert "addmm_not_registered" in gaps("deterministic")
    assert gaps("all") == []


def test_a_seam_is_chosen_by_name_whatever_its_series(native: Path) -> None:
    only = run("status", native, "--only", SEAM, "--format", "json")
    assert only.statuses == {SEAM: "applied"}
    options = ("--series", "hardening", "--only", "npu_ops")
    assert set(run("status", native, *options, "--format", "json").statuses) == {"npu_ops"}
    skipped = run("status", native, "--skip", SEAM, "--format", "json")
    assert skipped.statuses == run("status", native, "--format", "json").statuses
    skips = [option for seam in HARDENING for option in ("--skip", seam)]
    left = run("status", native, "--series", "hardening", *skips)
    assert left.code == 2
    assert "leave no seam" in left.stderr


@pytest.mark.parametrize("command", ["apply", "status", "diff", "verify", "list"])
def test_an_unknown_series_is_a_usage_error(tmp_path: Path, command: str) -> None:
    assert run(command, *([] if command == "list" else [tmp_path]), "--series", "other").code == 2


@pytest.mark.parametrize(
    ("series", "suffix"),
    [("deterministic", "npu.deterministic"), ("all", "npu.deterministic.hardening")],
)
def test_the_version_of_a_wheel_says_which_series_is_in_it(
    tmp_path: Path, series: str, suffix: str
) -> None:
    out = tmp_path / "out"
    done = run("apply", "--series", series, "--wheel", build_wheel(tmp_path), out)
    assert (done.code, done.stderr) == (0, "")
    assert [path.name for path in out.iterdir()] == [f"sglang-{VERSION}+{suffix}-py3-none-any.whl"]


def test_matrix_remembers_each_series_apart(native: Path, tmp_path: Path) -> None:
    def judged(*options: str) -> dict[str, str]:
        report = run("matrix", "--trees", native, *options, "--format", "json").report
        return {each["seam"]: each["status"] for each in report["results"][0]["outcomes"]}

    for _ in range(2):
        assert not {*HARDENING} & set(judged())
        assert judged("--series", "hardening")[SEAM] == "applied"
        assert list(judged("--series", "all"))[: len(HARDENING)] == [*HARDENING]


@pytest.mark.parametrize("series", ["hardening", "all"])
def test_verify_checks_the_seams_of_both(native: Path, series: str) -> None:
    def ids(*options: str) -> dict[str, str]:
        done = run("verify", "--static", native, *options, "--format", "json")
        return {check["id"]: check["verdict"] for check in done.report["checks"]}

    assert not [name for name in ids() if name.startswith("hardened_")]
    assert ids("--series", series)[f"{SEAM}.in_place"] == "fail"
    run("apply", native, "--series", "hardening")
    found = ids("--series", series)
    checks = ("in_place", "compiles", "unmodified", "layout_kept")
    assert {found[f"{SEAM}.{check}"] for check in checks} == {"pass"}
    assert found["batch_invariant.in_place"] == "pass"
