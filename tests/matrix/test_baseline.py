from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.matrix import baseline


def result(name: str, revision: str | None = "1" * 40, **seams: str) -> dict[str, Any]:
    outcomes = [
        {"seam": seam, "status": status, "gaps": [], "outdated": False}
        | ({"evidence": {"sought": "x"}} if status == "conflict" else {})
        for seam, status in seams.items()
    ]
    return {"name": name, "tree": {"revision": revision}, "outcomes": outcomes}


def refused(name: str) -> dict[str, Any]:
    return result(name, None) | {"error": {"message": "no"}}


def check(identity: str, verdict: str) -> dict[str, str]:
    return {"id": identity, "verdict": verdict}


def changes(path: Path, before: list[dict[str, Any]], *after: dict[str, Any]) -> list[list[str]]:
    baseline.write(path, before)
    found = baseline.compare(baseline.read(path), after)
    return [[change[key] for key in ("name", "seam", "before", "after")] for change in found]


def test_file_is_small_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    gap = result("main", s="upstream")
    gap["outcomes"][0]["gaps"] = ["a", "b"]
    baseline.write(path, [gap, result("v0.5.10", None, s="pending"), refused("v0.5.9")])
    content = json.loads(path.read_text())
    assert content == {
        "schema": 1,
        "trees": {
            "v0.5.9": {"refused": True},
            "v0.5.10": {"statuses": {"s": "pending"}},
            "main": {"revision": "1" * 40, "statuses": {"s": "upstream (a, b)"}},
        },
    }
    assert list(content["trees"]) == ["v0.5.9", "v0.5.10", "main"]


def test_what_is_known_is_no_news(tmp_path: Path) -> None:
    known = [result("a", s="pending", t="conflict"), refused("b"), result("c", s="withheld")]
    moved = result("a", "2" * 40, s="pending", t="conflict")
    assert changes(tmp_path / "x", known, refused("b"), moved) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (result("a", s="pending"), result("a", s="conflict"), [["a", "s", "pending", "conflict"]]),
        (result("a", s="conflict"), result("a", s="pending"), [["a", "s", "conflict", "pending"]]),
        (result("a", s="pending"), refused("a"), [["a", "", "judged", "refused"]]),
        (refused("a"), result("a", s="pending"), [["a", "", "refused", "judged"]]),
        (
            refused("a"),
            result("a", s="conflict"),
            [["a", "", "refused", "judged"], ["a", "s", "missing", "conflict"]],
        ),
        (result("b", s="pending"), result("a", s="pending"), [["a", "", "missing", "judged"]]),
        (result("b"), refused("a"), [["a", "", "missing", "refused"]]),
        (
            result("a", s="pending"),
            result("a", s="pending", t="already"),
            [["a", "t", "missing", "already"]],
        ),
    ],
)
def test_news(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], expected: list[list[str]]
) -> None:
    assert changes(tmp_path / "x", [before], after) == expected


def test_new_conflict_has_its_evidence() -> None:
    (change, _) = reversed(baseline.compare({}, [result("a", s="conflict")]))
    assert change["evidence"] == {"sought": "x"}


def test_baseline_of_version_0_2(tmp_path: Path) -> None:
    path = tmp_path / "x"
    statuses = {"s": "applied", "t": "applied (outdated)", "u": "upstream (applied)"}
    path.write_text(json.dumps({"schema": 1, "trees": {"a": {"statuses": statuses}}}))
    expected = {"": "judged", "s": "pending", "t": "pending (outdated)", "u": "upstream (applied)"}
    assert baseline.read(path)["a"].statuses == expected


def test_checks_count_only_where_they_ran(tmp_path: Path) -> None:
    failing = result("a", s="pending") | {"checks": [check("s.x", "fail"), check("s.y", "pass")]}
    passing = result("a", s="pending") | {"checks": [check("s.x", "pass")]}
    path = tmp_path / "x"
    assert changes(path, [failing], failing) == []
    assert changes(path, [failing], result("a", s="pending")) == []
    assert changes(path, [failing], passing) == [["a", "check s.x", "fail", "missing"]]
    assert changes(path, [passing], failing) == [["a", "check s.x", "missing", "fail"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no baseline"),
        ("[]", "is no baseline"),
        ('{"schema": 1}', "is no baseline"),
        ('{"schema": 1, "trees": {"a": 1}}', "is no baseline"),
        ('{"schema": 2, "trees": {}}', "of format 2, written by another version"),
    ],
)
def test_no_baseline(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(Refused, match=said):
        baseline.read(path)


def test_missing_baseline(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--write-baseline makes a new one"):
        baseline.read(tmp_path / "x")
    with pytest.raises(Refused, match="cannot be written"):
        baseline.write(tmp_path / "no" / "x", [])
