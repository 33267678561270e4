"""Judge many refactorings of every kind and write the table of refusals to the docs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from random import Random

from tests.refactor.kinds import KINDS
from tests.refactor.oracle import judge
from tests.refactor.project import SHAPES, Case, share
from tests.refactor.verified import VERIFIED, verified

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "refactorings.md"


def cases(kind: str, version: str, count: int, seed: int) -> list[Case]:
    """Make that many different refactorings of one kind of one release."""
    found: list[Case] = []
    for number in range(40 * count):
        if len(found) == count:
            break
        try:
            case = KINDS[kind](Random(f"{seed} {kind} {version} {number}"), version)
        except LookupError:
            continue
        found.append(case)
    return found


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.refactor", description=__doc__)
    parser.add_argument("--per-kind", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verify", type=int, default=2, metavar="N", help="cases of a kind")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument(
        "--write", action="store_true", help="write the rows of docs/evidence/refactorings.md"
    )
    parser.add_argument("-v", action="store_true", help="name each refusal")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kind or list(KINDS)
    results = {kind: Counter[str]() for kind in kinds}
    accepted: dict[str, list[Case]] = {kind: [] for kind in kinds}
    wrong = 0
    for index, version in enumerate(SHAPES):
        share(version)
        print(version, file=sys.stderr, flush=True)
        for kind in kinds:
            each, more = divmod(chosen.per_kind, len(SHAPES))
            for case in cases(kind, version, each + (index < more), chosen.seed):
                verdict = judge(case)
                results[kind][verdict.partition(":")[0]] += 1
                if verdict.startswith("wrong"):
                    wrong += 1
                    print(f"{kind} {version} {case.touched}: {verdict}", flush=True)
                elif chosen.v and verdict != "right":
                    results[kind][f"  {case.touched}: {verdict}"] += 1
                if verdict == "right" and version in VERIFIED:
                    accepted[kind].append(case)
    for kind in kinds:
        for case in _spread(accepted[kind], chosen.verify):
            verdict = verified(case)
            results[kind][verdict.partition(":")[0]] += 1
            if verdict != "passed":
                wrong += verdict.startswith("false")
                print(f"{kind} {case.version} {case.touched}: {verdict}", flush=True)
    for kind, counts in results.items():
        print(f"{kind:30}", dict(counts))
    if chosen.write:
        PAGE.write_text(page(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if wrong else 0


def _spread(found: list[Case], count: int) -> list[Case]:
    """Choose so many cases, of releases and definitions as different as can be."""
    chosen: list[Case] = []
    waiting = list(reversed(found))
    while waiting and len(chosen) < count:
        taken = [value for each in chosen for value in (each.version, each.touched)]
        best = min(waiting, key=lambda c: taken.count(c.version) + taken.count(c.touched))
        chosen.append(best)
        waiting.remove(best)
    return chosen


def page(results: dict[str, Counter[str]], before: str) -> str:
    """Return the page with rows for the counted kinds; of the others the rows that it had."""
    rows = {line.split("|")[1].strip(): line for line in before.splitlines() if "|" in line}
    lines = []
    for kind, function in KINDS.items():
        what = (function.__doc__ or "").partition("\n")[0]
        if kind not in results:
            lines.append(rows[what])
            continue
        counts = results[kind]
        total = counts["right"] + counts["refused"] + counts["wrong"]
        share_refused = f"{100 * counts['refused'] // max(total, 1)} %"
        lines.append(
            f"| {what} | {total} | {counts['right']} | {counts['refused']} | {share_refused} "
            f"| {counts['wrong']} | {counts['passed']} | {counts['not applicable']} "
            f"| {counts['false failure']} |"
        )
    return HEAD + "\n".join(lines) + "\n"


HEAD = """\
# Refactored trees

Forks move, rename and reformat what the series edits. This table counts what `apply` makes of
refactorings that change nothing of what SGLang does, made from one release of every structure.
Right means that the result is, but for the refactoring, that of the release; a refusal is a
conflict that writes nothing.

Of each kind some results that are right, of 0.5.12.post1 and 0.5.23, are verified too, against the
refactored release as the original: by all static checks, and by those of the behaviour that the
refactored definition has a part in. Passed means that every check says what it says of the patched
release itself; not applicable, that a check could not be run on the refactoring and says so; a
false failure is one that the patched release does not have. Written by
`python -m tests.refactor --write`.

| refactoring | cases | right | refused | share refused | wrong | verified: passed | \
not applicable | false failures |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
