"""Compare a run with a baseline, so that only news is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_npu_patch.baseline_file import SCHEMA, read_baseline, write_baseline
from sgl_npu_patch.matrix.trees import by_version

REFUSED, JUDGED, MISSING = "refused", "judged", "missing"
_CHECK = "check "
Statuses = dict[str, str]
"""What is compared of one tree, by seam; under no seam, whether the tree could be evaluated."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a baseline has of one tree, and the commit at which that was found."""

    statuses: Statuses
    revision: str


def statuses_of(result: Mapping[str, Any]) -> Statuses:
    """Return what is compared of a tree's document."""
    if "error" in result:
        return {"": REFUSED}
    statuses = {"": JUDGED}
    statuses |= {outcome["seam"]: status_of(outcome) for outcome in result["outcomes"]}
    for check in result.get("checks", ()):
        if check["verdict"] == "fail":
            statuses[f"{_CHECK}{check['id']}"] = "fail"
    return statuses


def status_of(outcome: Mapping[str, Any]) -> str:
    """Return a status with what else distinguishes one outcome of a seam from another."""
    more = [*(["outdated"] if outcome["outdated"] else []), *outcome["gaps"]]
    return f"{outcome['status']} ({', '.join(more)})" if more else str(outcome["status"])


def compare(
    expected: Mapping[str, Entry], results: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """List what differs from a baseline: tree, seam or check, before and after.

    A tree that the baseline lacks is news in one line, unless a seam of it is in conflict. Trees
    that are in the baseline alone are no news: this run did not look at them.
    """
    return [
        {
            "name": result["name"],
            "revision": result["tree"]["revision"],
            "seam": key,
            "before": before,
            "after": after,
        }
        | _evidence(result, key)
        for result in results
        for key, before, after in _differences(expected.get(result["name"]), result)
    ]


def _evidence(result: Mapping[str, Any], seam: str) -> dict[str, Any]:
    for outcome in result["outcomes"]:
        if outcome["seam"] == seam and "evidence" in outcome:
            return {"evidence": outcome["evidence"]}
    return {}


def _differences(entry: Entry | None, result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    found = statuses_of(result)
    before = entry.statuses if entry is not None else {}
    whole_tree = before.get("") != found[""]
    for key in {**before, **found}:
        old, new = before.get(key, MISSING), found.get(key, MISSING)
        # Without the checks, a run knows nothing of those that failed.
        unknown = new == MISSING and key.startswith(_CHECK) and "checks" not in result
        # That the tree can be evaluated now, or not any more, says it of every seam.
        said = whole_tree and key != "" and new != "conflict"
        if old != new and not unknown and not said:
            yield key, old, new


def read(path: Path) -> dict[str, Entry]:
    """Read a baseline.

    Raises:
        Refused: it is missing, or not what `write` writes.
    """
    return read_baseline(
        path,
        "matrix",
        lambda content: {name: _entry(entry) for name, entry in content["trees"].items()},
    )


def _entry(entry: Mapping[str, Any]) -> Entry:
    statuses = {"": REFUSED if entry.get("refused") else JUDGED}
    for key, status in entry.get("statuses", {}).items():
        # A run writes nothing. Version 0.2 called what is pending in it applied all the same.
        statuses[str(key)] = re.sub(r"^applied\b", "pending", str(status))
    return Entry(statuses, str(entry.get("revision") or ""))


def write(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write what a run found out, trees in the order of their versions.

    Raises:
        Refused: it cannot be written.
    """
    trees = {}
    for result in sorted(results, key=lambda result: by_version(result["name"])):
        entry: dict[str, Any] = {}
        if result["tree"]["revision"]:
            entry["revision"] = result["tree"]["revision"]
        statuses = statuses_of(result)
        if statuses.pop("") == REFUSED:
            entry["refused"] = True
        else:
            entry["statuses"] = statuses
        trees[result["name"]] = entry
    text = json.dumps({"schema": SCHEMA, "trees": trees}, indent=1) + "\n"
    write_baseline(path, text)
