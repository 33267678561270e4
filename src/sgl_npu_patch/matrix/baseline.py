"""Compare a run with what a file says is known, so that only news is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_npu_patch.baseline_file import SCHEMA, read_baseline, write_baseline
from sgl_npu_patch.matrix.selection import by_version

REFUSED, JUDGED, MISSING = "refused", "judged", "missing"
_CHECK = "check "
Facts = dict[str, str]
"""What is compared of one tree: a status by seam; under no seam, whether it could be judged."""


@dataclass(frozen=True, slots=True)
class Known:
    """Hold what is known of one tree, and at which commit that was found."""

    facts: Facts
    revision: str


def facts_of(result: Mapping[str, Any]) -> Facts:
    """Give what is compared of a tree's document."""
    if "error" in result:
        return {"": REFUSED}
    facts = {"": JUDGED}
    facts |= {outcome["seam"]: fact_of(outcome) for outcome in result["outcomes"]}
    for check in result.get("checks", ()):
        if check["verdict"] == "fail":
            facts[f"{_CHECK}{check['id']}"] = "fail"
    return facts


def fact_of(outcome: Mapping[str, Any]) -> str:
    """Give a status with what else tells one outcome of a seam from another."""
    more = [*(["outdated"] if outcome["outdated"] else []), *outcome["gaps"]]
    return f"{outcome['status']} ({', '.join(more)})" if more else str(outcome["status"])


def compare(known: Mapping[str, Known], document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List what is not as known: tree, seam or check, before and after; trees in the order asked.

    A tree of which nothing is known is news in one line, unless a seam of it is in conflict. What
    is known of trees that this run did not look at says nothing.
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
        for result in document["results"]
        for key, before, after in _differences(known.get(result["name"]), result)
    ]


def _evidence(result: Mapping[str, Any], seam: str) -> dict[str, Any]:
    for outcome in result["outcomes"]:
        if outcome["seam"] == seam and "evidence" in outcome:
            return {"evidence": outcome["evidence"]}
    return {}


def _differences(known: Known | None, result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    found = facts_of(result)
    before = known.facts if known is not None else {}
    judged_now_only = before.get("") != found[""]
    for key in {**before, **found}:
        old, new = before.get(key, MISSING), found.get(key, MISSING)
        # Without the checks, a run knows nothing of those that failed.
        unknown = new == MISSING and key.startswith(_CHECK) and "checks" not in result
        # That the tree is judged now, or not any more, says it of every seam.
        said = judged_now_only and key != "" and new != "conflict"
        if old != new and not unknown and not said:
            yield key, old, new


def read(path: Path) -> dict[str, Known]:
    """Read a baseline.

    Raises:
        Refused: it is missing, or not what `write` writes.
    """
    return read_baseline(
        path,
        "matrix",
        lambda content: {name: _known(entry) for name, entry in content["trees"].items()},
    )


def _known(entry: Mapping[str, Any]) -> Known:
    facts = {str(key): str(fact) for key, fact in entry.get("statuses", {}).items()}
    return Known(
        {"": REFUSED if entry.get("refused") else JUDGED} | facts, str(entry.get("revision") or "")
    )


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
        facts = facts_of(result)
        if facts.pop("") == REFUSED:
            entry["refused"] = True
        else:
            entry["statuses"] = facts
        trees[result["name"]] = entry
    text = json.dumps({"schema": SCHEMA, "trees": trees}, indent=1) + "\n"
    write_baseline(path, text)
