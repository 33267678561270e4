"""Run `verify --server` on a release of every shape, and write docs/evidence/server.md.

`python -m tests.server RELEASE...` runs releases, all without a name, and writes the page from what
the last run of each has found; `--write` only writes the page. Needs the extra `server`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sgl_npu_patch.verify.server.scenarios import SCENARIOS
from tests.upstream.program import ROOT, program
from tests.upstream.releases import release_tree

PAGE = ROOT / "docs" / "evidence" / "server.md"
FOUND = ROOT / "build" / "server"
RELEASES = ("0.5.3.post1", "0.5.6", "0.5.9", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.18", "0.5.23")
"""One of every shape of SGLang's server on ascend."""
CHECKS = ("server.starts", *SCENARIOS)
UNPATCHED = ("server.starts", "server.at_once", "server.penalties")
"""What an unpatched release is asked."""

HEAD = """\
# What `verify --server` finds

The [scenarios](../verify.md#the-trees-own-server) on one release of every shape, patched, with the
tiny Qwen3. `held`: every answer was the one alone, bit for bit. `n/a`: not run, see below the
table. `not run`: nobody has asked. The last line is the processor time of the whole command, on a
busy machine, for the scenarios that were run. Written by `python -m tests.server`.

`mixed_chunk` is `n/a` because the launch guards switch mixed chunks off: with them every release
answers with wrong tokens on ascend.

Open: before 0.5.9 the last digits of a greedy request's logprobs depend on whether a request of its
batch is sampled (`at_once`, `join_and_leave`, `penalties`). By its code, SGLang takes the logarithm
of softmax there, and log_softmax where all are greedy, and later releases do the same with
`--sampling-backend pytorch`, which is not run here.

"""
WORDS = {"pass": "held", "fail": "**violated**", "not-applicable": "n/a"}


def run(release: str, *, patched: bool) -> None:
    """Run the scenarios on a release, and keep what they find."""
    found = find(release, CHECKS if patched else UNPATCHED, patched=patched)
    _kept(release, patched=patched).write_text(json.dumps(found, indent=1), encoding="utf-8")


def find(release: str, checks: Sequence[str], *, patched: bool = True) -> dict[str, Any]:
    """Return what these checks say of a whole release, and how many seconds they take."""
    only = [word for check in checks for word in ("--only", check)]
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-server-") as folder:
        tree = Path(folder) / release
        shutil.copytree(release_tree(release), tree)
        if patched and (done := program("apply", tree)).code:
            raise RuntimeError(done.stderr)
        before = _seconds()
        done = program("verify", tree, "--server", *only, "--format", "json")
    if done.code not in (0, 1):
        raise RuntimeError(done.stderr)
    return {"checks": done.report["checks"], "seconds": round(_seconds() - before)}


def _seconds() -> float:
    """Return the processor time of all processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _kept(release: str, *, patched: bool) -> Path:
    return FOUND / f"{release}{'' if patched else '-unpatched'}.json"


def _read(release: str, *, patched: bool) -> dict[str, Any]:
    path = _kept(release, patched=patched)
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        "checks": {each["id"]: each for each in found.get("checks", ())},
        "seconds": found.get("seconds", "-"),
    }


def page() -> str:
    """Return the page."""
    patched = {release: _read(release, patched=True) for release in RELEASES}
    lines = [HEAD]
    lines += [f"| scenario | {' | '.join(RELEASES)} |\n", f"|---|{'---|' * len(RELEASES)}\n"]
    for check in CHECKS:
        verdicts = [patched[release]["checks"].get(check) for release in RELEASES]
        words = " | ".join(WORDS[each["verdict"]] if each else "not run" for each in verdicts)
        lines.append(f"| `{check}` | {words} |\n")
    seconds = " | ".join(str(patched[release]["seconds"]) for release in RELEASES)
    lines.append(f"| CPU seconds | {seconds} |\n\n")
    lines += _notes(patched)
    lines.append(
        "\n## Unpatched\n\nThe same releases before `apply`, and a part of the scenarios.\n\n"
    )
    lines += _notes({release: _read(release, patched=False) for release in RELEASES})
    return "".join(lines)


def _notes(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """List each reason why a scenario was not run or did not hold, with its releases."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for release, about in found.items():
        for check, result in about["checks"].items():
            if result["verdict"] != "pass":
                message = " ".join(result["message"].split())
                reasons.setdefault((check, message), []).append(release)
    for (check, message), releases in reasons.items():
        if message != "the server does not start here":
            yield f"- `{check}`, {', '.join(releases)}: {message}\n"


if __name__ == "__main__":
    names = sys.argv[1:]
    FOUND.mkdir(parents=True, exist_ok=True)
    if names != ["--write"]:
        for name in names or RELEASES:
            run(name, patched=True)
            run(name, patched=False)
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
