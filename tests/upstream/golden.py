"""Read and write what is recorded of every release: its statuses, and what `apply` writes on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.apply import open_tree, plan
from sgl_npu_patch.engine.errors import Refused
from tests.upstream import edits
from tests.upstream.releases import release_tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = Path(__file__).with_name("expected.toml")
PATCHES = Path(__file__).with_name("patches")

HEADER = """\
# What `status` says about each published release and fork.
# Written by `make refresh`; review every change to it.
"""
LIKE = "# The same on "

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """What the series makes of a release: an entry of the table, and the edits as text."""

    entry: Entry
    edits: str


def observe(version: str) -> Observed:
    """Plan the series on a release.

    A refused tree has an exit code only; its message is checked where it is tested.
    """
    try:
        with open_tree(release_tree(version), PROJECT) as tree:
            made = plan(tree, SERIES)
    except Refused:
        return Observed({"exit": 4}, "")
    entry: Entry = {
        "exit": 0,
        "changed": [str(path) for path in made.changes.changed],
        "added": [str(path) for path in made.changes.added],
        "statuses": {outcome.seam: outcome.status for outcome in made.outcomes},
    }
    if gaps := {outcome.seam: list(outcome.gaps) for outcome in made.outcomes if outcome.gaps}:
        entry["gaps"] = gaps
    return Observed(entry, edits.render(made.changes.changes))


def read_expected() -> dict[str, Entry]:
    """Return the checked-in entries by release, in their order."""
    entries: dict[str, Entry] = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    return entries


@cache
def read_patches() -> Mapping[str, str]:
    """Return the checked-in edits by release.

    Each file is named after the first release that it is written on, and names the others.
    """
    found = {}
    for file in sorted(PATCHES.glob("*.diff")):
        first, _, text = file.read_text(encoding="utf-8").partition("\n")
        others = first.removeprefix(LIKE).split(", ") if first.startswith(LIKE) else []
        found.update(dict.fromkeys([file.stem, *others], text))
    return found


def shapes() -> tuple[str, ...]:
    """Return one release of every shape: no other is edited as it is."""
    return tuple(version for version in read_expected() if (PATCHES / f"{version}.diff").exists())


def write(observed: Mapping[str, Observed]) -> None:
    """Replace the table and the edits."""
    EXPECTED.write_bytes(render({name: each.entry for name, each in observed.items()}).encode())
    PATCHES.mkdir(exist_ok=True)
    for file in PATCHES.glob("*.diff"):
        file.unlink()
    for name, text in grouped({name: each.edits for name, each in observed.items()}).items():
        (PATCHES / f"{name}.diff").write_text(text, encoding="utf-8", newline="\n")


def grouped(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the files of edits by name: one for all releases with the same edits."""
    groups: dict[str, list[str]] = {}
    for version, text in texts.items():
        if text:
            groups.setdefault(text, []).append(version)
    return {
        first: f"{LIKE}{', '.join(others)}\n{text}" if others else f"# On this release only\n{text}"
        for text, (first, *others) in groups.items()
    }


def render(entries: Mapping[str, Entry]) -> str:
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
