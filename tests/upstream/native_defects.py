"""Write docs/evidence/native-defects.md: what `verify` finds in upstream's own adaptation.

    python -m tests.upstream.native_defects

Runs the checks on every adapted release, which takes some minutes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from tests.upstream.edited import native_gaps
from tests.upstream.program import ROOT, SEAMS, Run, program
from tests.upstream.releases import RELEASES_NATIVE, release_tree
from tests.upstream.test_statuses import OPEN

PAGE = ROOT / "docs" / "evidence" / "native-defects.md"

INTRODUCTION = """\
# Defects of the adapted releases

SGLang has its own adaptation since 0.5.13. These are the gaps that it leaves on the releases as
they are published, the seam that closes each on `apply`, and the checks of `verify --layers` that
fail for them. A cell says how the gap is known there: `verify` means that a check executes the
release and fails, `structure` that it is seen in the code only; an empty one that the release does
not have it. Written by `python -m tests.upstream.native_defects`.
"""


def verified(version: str) -> Run:
    """Run the checks of every seam on a release as it is published."""
    # Unless they are named, one result stands for all checks of a tree that is not patched.
    only = [part for seam in SEAMS for part in ("--only", seam)]
    run = program("verify", "--layers", *only, release_tree(version), "--format", "json")
    assert run.code in (0, 1), run.stderr
    return run


def failing(run: Run) -> list[dict[str, Any]]:
    """List the checks that failed, but for those that ask whether the tree is patched."""
    checks = run.report["checks"]
    return [each for each in checks if each["verdict"] == "fail" and each["kind"] != "static"]


def cells(version: str, run: Run) -> dict[str, str]:
    """Return how each gap of a release is known."""
    seen = {check["gap"] for check in failing(run)}
    return {gap: "verify" if gap in seen else "structure" for gap in native_gaps(version)}


def row(cells_of_row: Iterable[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells_of_row)} |\n"


def render(runs: dict[str, Run]) -> str:
    """Return the page: the table, then the evidence of the newest release that has each gap."""
    seams = {gap: seam for version in runs for gap, seam in native_gaps(version).items()}
    known = {version: cells(version, run) for version, run in runs.items()}
    parts = [INTRODUCTION, "\n", row(["gap", "closed by", *runs])]
    parts.append(row(["---"] * (len(runs) + 2)))
    for gap, seam in seams.items():
        closing = "nothing; said at launch" if gap == OPEN else f"`{seam}`"
        parts.append(row([f"`{gap}`", closing, *(known[v].get(gap, "") for v in runs)]))
    for gap in seams:
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
