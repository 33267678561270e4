"""Write docs/evidence/native-defects.md: what `verify` finds in the releases that need no patch.

    python -m tests.upstream.native_defects

Runs the checks on every native release, which takes some minutes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from tests.upstream.golden import CLOSED_BY
from tests.upstream.program import ROOT, Run, program
from tests.upstream.releases import RELEASES_NATIVE, release_tree

PAGE = ROOT / "docs" / "evidence" / "native-defects.md"

INTRODUCTION = """\
# Defects of the native releases

SGLang has its own adaptation since 0.5.13, and `deterministic` leaves it alone. These are the
checks of `verify --layers` that fail on those releases, by the gap that `status` names for each. A
cell says how the gap is known there: `verify` means that a check executes the release and fails,
`status` that it is seen in the structure of the code only; an empty one that the release does not
have it. The seam that closes a gap is one of the series `hardening` (`apply --series all`). Written
by `python -m tests.upstream.native_defects`.
"""


def verified(version: str) -> Run:
    """Run every check on a release as it is published."""
    run = program("verify", "--layers", release_tree(version), "--format", "json")
    assert run.code in (0, 1), run.stderr
    return run


def failing(run: Run) -> list[dict[str, Any]]:
    """List the checks that failed."""
    return [check for check in run.report["checks"] if check["verdict"] == "fail"]


def named(run: Run) -> list[str]:
    """List the gaps that `status` names, in its order."""
    return [gap for gaps in run.gaps.values() for gap in gaps]


def cells(run: Run) -> dict[str, str]:
    """Say of each gap of a release how it is known."""
    seen = {check["gap"] for check in failing(run)}
    return {gap: "verify" if gap in seen else "status" for gap in named(run)}


def row(cells_of_row: Iterable[str]) -> str:
    """Give one line of a table."""
    return f"| {' | '.join(cells_of_row)} |\n"


def render(runs: dict[str, Run]) -> str:
    """Give the page: the table, then the evidence of the newest release that has each gap."""
    gaps = list(dict.fromkeys(gap for run in runs.values() for gap in named(run)))
    known = {version: cells(run) for version, run in runs.items()}
    parts = [INTRODUCTION, "\n", row(["gap", "closed by", *runs])]
    parts.append(row(["---"] * (len(runs) + 2)))
    for gap in gaps:
        seam = next((seam for seam, closed in CLOSED_BY.items() if gap in closed), None)
        closing = f"`{seam}`" if seam else "nothing; said at launch"
        parts.append(row([f"`{gap}`", closing, *(known[v].get(gap, "") for v in runs)]))
    for gap in gaps:
        having = [version for version in runs if gap in known[version]]
        newest = having[-1]
        checks = [check for check in failing(runs[newest]) if check["gap"] == gap]
        parts.append(f"\n## {gap}\n\nFrom {having[0]} to {newest}.\n")
        if not checks:
            parts.append("No check executes it; it is seen in the structure of the code.\n")
        parts += [_evidence(check) for check in checks]
    return "".join(parts)


def _evidence(check: dict[str, Any]) -> str:
    site = check["site"]
    facts = {"expected": check["expected"], "found": check["found"] or check["message"]}
    lines = [f"\n- `{check['id']}`: {check['meaning']}\n"]
    lines += [f"  {name}: {_plain(text)}\n" for name, text in facts.items() if text]
    lines.append(f"  at `{site['path']}`, `{site['symbol']}`\n" if site else "")
    code = textwrap.indent(check["code"], "  ")
    return "".join(lines) + (f"\n  ```text\n{code}\n  ```\n" if code else "")


def _plain(text: str) -> str:
    """Put a text on one line, without what differs from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))


def main() -> None:
    """Verify every native release and write the page."""
    runs = {version: verified(version) for version in RELEASES_NATIVE}
    PAGE.write_text(render(runs), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
