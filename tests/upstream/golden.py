"""The golden tables of statuses: read them, observe them anew, write them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from tests.upstream.program import program
from tests.upstream.releases import release_tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = Path(__file__).with_name("expected.toml")

HEADER = """\
# What `status` says about each published release and fork; under "hardened", what
# `status --series all` says about those with an adaptation of upstream's.
# Written by `python -m tests.upstream.refresh`; review every change to it.
"""

HARDENED = "hardened"

Entry = dict[str, Any]
Series = Literal["deterministic", "all"]

CLOSED_BY = {
    "hardened_radix_cache": {"deepseek_refused"},
    "hardened_operators": {
        "alias_not_rebound",
        "out_overload_lost",
        "workspace_not_rebound",
        "rebinding_not_undone",
        "addmm_not_registered",
        "bmm_not_registered",
        "mean_of_all_not_replaced",
        "mean_dtype",
        "add_rms_norm_signature",
        "scoped_mode_not_restored",
        "extension_not_checked",
    },
    "hardened_sampler": {
        "min_p_type_error",
        "neighbour_dependent_draw",
        "gumbel_upper_bound",
        "top_p_dtype",
    },
    "hardened_launch": {"launch_guards_missing"},
}
"""What the seams of the series `hardening` close on native releases."""


def read_expected(series: Series = "deterministic") -> dict[str, Entry]:
    """Return the checked-in entries by release, in their order."""
    entries: dict[str, Entry] = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    hardened: dict[str, Entry] = entries.pop(HARDENED)
    return entries if series == "deterministic" else hardened


def observe(version: str, series: Series = "deterministic") -> Entry:
    """Run `status` on a release and keep what the golden table is about.

    A refused tree has an exit code only; its message is checked where it is tested.
    """
    run = program("status", release_tree(version), "--series", series, "--format", "json")
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


def write_expected(entries: dict[str, Entry], hardened: dict[str, Entry]) -> None:
    """Replace the golden tables."""
    EXPECTED.write_bytes(render(entries, hardened).encode())


def render(entries: dict[str, Entry], hardened: dict[str, Entry]) -> str:
    """Return the tables as TOML: one block a release, one line a fact, so that diffs read well."""
    lines = [HEADER]
    for prefix, table in (("", entries), (f"{HARDENED}.", hardened)):
        for version, entry in table.items():
            lines.append(f"[{prefix}{json.dumps(version)}]")
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
