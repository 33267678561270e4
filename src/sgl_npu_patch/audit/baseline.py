"""Compare an audit with what a file says is known, so that only news counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgl_npu_patch.audit.scan import Call
from sgl_npu_patch.baseline_file import SCHEMA, read_baseline, write_baseline
from sgl_npu_patch.engine.trees.directory import SourceTree

Key = tuple[str, str, str]
"""Path below the package, symbol and operator: lines move."""


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one call with its key, and whether the baseline has it."""

    call: Call
    key: Key
    known: bool

    @property
    def is_finding(self) -> bool:
        """Tell whether the call may depend on the batch, and nothing replaces it."""
        return not self.call.covered


def keyed(calls: Iterable[Call], tree: SourceTree) -> list[tuple[Call, Key]]:
    """Pair calls with their keys."""
    return [
        (call, (call.site.path.relative_to(tree.package).as_posix(), call.site.symbol, call.name))
        for call in calls
    ]


def compare(calls: Sequence[tuple[Call, Key]], known: Mapping[Key, int]) -> list[Row]:
    """Mark what is known: of each key as many calls as the baseline has."""
    left = Counter(known)
    rows = []
    for call, key in calls:
        seen = not call.covered and left[key] > 0
        left[key] -= seen
        rows.append(Row(call, key, seen))
    return rows


def read(path: Path) -> dict[Key, int]:
    """Read a baseline.

    Raises:
        Refused: it is missing, or not what `write` writes.
    """
    return read_baseline(
        path,
        "audit",
        lambda content: {
            (str(each["path"]), str(each["symbol"]), str(each["operator"])): int(each["count"])
            for each in content["findings"]
        },
    )


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the findings.

    Raises:
        Refused: it cannot be written.
    """
    counted = Counter(row.key for row in rows if row.is_finding)
    findings = [
        {"path": place, "symbol": symbol, "operator": operator, "count": count}
        for (place, symbol, operator), count in sorted(counted.items())
    ]
    lines = ",\n".join(f"  {json.dumps(each)}" for each in findings)
    text = f'{{\n "schema": {SCHEMA},\n "findings": [\n{lines}\n ]\n}}\n'
    write_baseline(path, text)
