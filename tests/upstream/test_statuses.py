from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.codemods.upstream.gaps import FUSED_ATTENTION_V2, GAPS
from tests.upstream.edited import native_gaps
from tests.upstream.golden import (
    EXPECTED,
    observe,
    read_expected,
    read_patches,
    render,
)
from tests.upstream.program import SEAMS, program
from tests.upstream.releases import (
    FORKS,
    FORKS_NATIVE,
    RELEASES,
    RELEASES_NATIVE,
    RELEASES_PATCHED,
    RELEASES_TOO_OLD,
    copy_tree,
    release_tree,
)
from tests.upstream.trees import sampled

STATUS_OF_LETTER = {"A": "pending", "W": "withheld", "N": "not-needed", "U": "upstream"}

# Spelled out by hand: what must hold, not what the program was seen to do. Columns as in SEAMS.
STATUSES = {
    "0.5.3rc2": "A W N N A N N A A A A",
    "0.5.3": "A W N N A N N A A A A",
    "0.5.3.post1": "A W N N A N N A A A A",
    "0.5.3.post2": "A A N N A N N A A A A",
    "0.5.3.post3": "A A N N A N N A A A A",
    "0.5.4": "A W N N A N N A A A A",
    "0.5.4.post1": "A W N N A N N A A A A",
    "0.5.4.post2": "A W N N A N N A A A A",
    "0.5.4.post3": "A W N N A N N A A A A",
    "0.5.5": "A W N N A N N A A A A",
    "0.5.5.post1": "A W N N A N N A A A A",
    "0.5.5.post2": "A W N N A N N A A A A",
    "0.5.5.post3": "A W W N A W N A A A A",
    "0.5.6": "A W W N A W N A A A A",
    "0.5.6.post1": "A W W N A W N A A A A",
    "0.5.6.post2": "A W W N A W N A A A A",
    "0.5.7": "A W W N A W N A A A A",
    "0.5.8": "A W W N A W N A A A A",
    "0.5.8.post1": "A W W N A W N A A A A",
    "0.5.9": "A W A N A A N A A A A",
    "0.5.10rc0": "A W A N A A N A A A A",
    "0.5.10": "A W A N A A N A A A A",
    "0.5.10.post1": "A W A N A A N A A A A",
    "0.5.11": "A W A A A A N A A A A",
    "0.5.12": "A A A A A A A A A A A",
    "0.5.12.post1": "A A A A A A A A A A A",
    "0.5.13": "U A U U A A N A A A A",
    "0.5.13.post1": "U A U U A A N A A A A",
    "0.5.14": "U A U U A A N A A A A",
    "0.5.15": "U A U U A A N A A A A",
    "0.5.15.post1": "U A U U A A N A A A A",
    "0.5.16": "U A U U A A N A A A A",
    "0.5.17": "U U U U A A N A A A A",
    "0.5.18": "U U U U A A N A A A A",
    "0.5.19": "U U U U A A N A A A A",
    "0.5.20": "U U U U A A N A A A A",
    "0.5.21": "U U U U A A N A A A A",
    "0.5.22": "U U U U A A N A A A A",
    "0.5.23": "U U U U A A N A A A A",
    "sglang-kt==0.5.2": "A W A N A A N A A A A",
    "sglang-kt==0.6.1": "A W A N A A N A A A A",
    "sglang-kt==0.6.3": "A W A N A A N A A A A",
    "sglang-kt==0.7.2": "A W A N A A N A A A A",
    "lsglang==1.3.1": "A A A A A A A A A A A",
    "power-sglang-cuda124==1.0.2": "A W W N A W N A A A A",
    "lsglang==1.4.7": "U U U U A A N A A A A",
    "lsglang==1.5.3": "U U U U A A N A A A A",
    "lsglang==1.6.5": "U U U U A A N A A A A",
}

# A native fork follows the development branch, and has the gaps of the release cut next to it.
GAPS_AS_IN = {"lsglang==1.4.7": "0.5.17", "lsglang==1.5.3": "0.5.18", "lsglang==1.6.5": "0.5.21"}


OPEN = FUSED_ATTENTION_V2.name
"""The gap that nothing closes."""
# This fork took over upstream's call of that operator.
OPEN_IN = (*RELEASES_NATIVE, *FORKS_NATIVE, "lsglang==1.3.1")


def expected_statuses(release: str) -> dict[str, str]:
    letters = STATUSES[release].split()
    return {seam: STATUS_OF_LETTER[letter] for seam, letter in zip(SEAMS, letters, strict=True)}


def expected_gaps(release: str) -> set[str]:
    """Return the gaps of upstream's own form."""
    position = RELEASES_NATIVE.index(GAPS_AS_IN.get(release, release))
    return {
        gap.name
        for gap in GAPS.values()
        if RELEASES_NATIVE.index(gap.since) <= position
        and (gap.until is None or position <= RELEASES_NATIVE.index(gap.until))
    }


def left_open(release: str) -> dict[str, list[str]]:
    """Return the gaps that stay on the patched tree, by seam."""
    return {"batch_invariant": [OPEN]} if release in OPEN_IN else {}


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    return read_expected()


def test_golden_table_has_every_release_in_order(expected: dict[str, dict[str, Any]]) -> None:
    assert tuple(expected) == RELEASES + FORKS
    assert tuple(STATUSES) == RELEASES_PATCHED + RELEASES_NATIVE + FORKS
    assert tuple(GAPS_AS_IN) == FORKS_NATIVE


def test_golden_table_is_as_the_refresh_writes_it(expected: dict[str, dict[str, Any]]) -> None:
    assert render(expected).encode() == EXPECTED.read_bytes()


@pytest.mark.parametrize("release", STATUSES)
def test_golden_table_agrees_with_the_statuses_spelled_out(
    expected: dict[str, dict[str, Any]], release: str
) -> None:
    entry = expected[release]
    assert list(entry["statuses"].items()) == list(expected_statuses(release).items())
    assert entry["exit"] == 0
    assert entry.get("gaps", {}) == left_open(release)
    assert entry["changed"]
    assert entry["added"]


@pytest.mark.parametrize("release", [*RELEASES_NATIVE, *FORKS_NATIVE])
def test_gaps_of_upstreams_form_are_found_by_structure(release: str) -> None:
    assert native_gaps(release) == {gap: GAPS[gap].seam for gap in expected_gaps(release)}


@pytest.mark.parametrize("release", RELEASES_TOO_OLD)
def test_golden_table_refuses_what_is_too_old(
    expected: dict[str, dict[str, Any]], release: str
) -> None:
    assert expected[release] == {"exit": 4}


@pytest.mark.parametrize("release", [*RELEASES, *FORKS])
def test_release_is_judged_and_edited_as_recorded(
    expected: dict[str, dict[str, Any]], release: str
) -> None:
    observed = observe(release)
    assert observed.entry == expected[release]
    assert observed.edits == read_patches().get(release, "")


@pytest.mark.parametrize("release", sampled(RELEASES_TOO_OLD, RELEASES_TOO_OLD[-1:]))
@pytest.mark.parametrize("command", ["apply", "status", "diff"])
def test_too_old_release_is_refused(release: str, command: str, tmp_path: Path) -> None:
    run = program(command, copy_tree(release, tmp_path / "tree"))
    assert run.code == 4
    assert run.stdout == b""
    assert "deterministic inference" in run.stderr


@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
def test_report_describes_the_tree(release: str) -> None:
    tree = release_tree(release)
    report = program("status", tree, "--format", "json").report
    assert set(report) >= {"schema", "tool", "tree", "outcomes", "changed", "added"}
    assert report["tree"]["version"] == release
    for outcome in report["outcomes"]:
        assert set(outcome) >= {"seam", "status", "sites", "reason", "gaps"}
        for site in outcome["sites"]:
            if site["path"] in report["added"]:
                assert site["line"] == 0
                continue
            text = (tree / site["path"]).read_bytes()
            assert 0 <= site["line"] <= text.count(b"\n") + 1


def test_table_on_a_terminal_names_every_seam_and_open_gap() -> None:
    run = program("status", release_tree("0.5.13"))
    text = run.stdout.decode()
    assert run.code == 0
    assert not [seam for seam in SEAMS if seam not in text]
    assert OPEN in text
