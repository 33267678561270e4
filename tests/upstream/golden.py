"""Read the golden table of statuses, observe it anew, write it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.upstream.program import program
from tests.upstream.releases import release_tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = Path(__file__).with_name("expected.toml")

HEADER = """\
# What `status` says about each published release and fork.
# Written by `python -m tests.upstream.refresh`; review every change to it.
"""

Entry = dict[str, Any]


def read_expected() -> dict[str, Entry]:
    """Return the checked-in entries by release, in their order."""
    entries: dict[str, Entry] = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    return entries


def observe(version: str) -> Entry:
    """Run `status` on a release and keep what the golden table is about.

    A refused tree has an exit code only; its message is checked where it is tested.
    """
    run = program("status", release_tree(version), "--format", "json")
    if run.code != 0:
        return {"exit": run.code}
    entry: Entry = {
        "exit": run.code,
        "changed": [str(path) for path in run.changed],
        "added": [str(path) for path in run.added],
        "statuses": run.statuses,
    }
    if run.gaps:
        entry["gaps"] = run.gaps
    return entry


def write_expected(entries: dict[str, Entry]) -> None:
    """Replace the golden table."""
    EXPECTED.write_bytes(render(entries).encode())


def render(entries: dict[str, Entry]) -> str:
    """Return the table as TOML: one block a release, one line a fact, so that diffs read well."""
    lines = [HEADER]
    for version, entry in entries.items():
        lines.append(f"[{json.dumps(version)}]")
        lines += _assignments(entry, "")
        lines.append("")
    return "\n".join(lines)


def _assignments(entry: Entry, prefix: str) -> list[str]:
    lines = []
    for key, value in entry.items():
        if isinstance(value, dict):
            lines += _assignments(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            items = "".join(f"\n    {json.dumps(item)}," for item in value)
            lines.append(f"{prefix}{key} = [{items}\n]" if value else f"{prefix}{key} = []")
        else:
            lines.append(f"{prefix}{key} = {json.dumps(value)}")
    return lines
