"""Judge many mutants; print what went wrong, and how many fair ones were accepted."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from random import Random

from tests.fuzz.mutants import judge
from tests.refactor.project import SHAPES


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first mutant's number")
    parser.add_argument("-v", action="store_true", help="name each refusal of a fair mutant")
    chosen = parser.parse_args(arguments)
    counts = Counter[str]()
    for number in range(chosen.first, chosen.first + chosen.count):
        version = SHAPES[number % len(SHAPES)]
        verdict, path, _ = judge(version, Random(f"{chosen.seed} {number}"))
        counts["accepted" if verdict.accepted else "refused"] += 1
        counts["fair"] += verdict.fair
        counts["fair and accepted"] += verdict.fair and verdict.accepted
        if verdict.problem:
            counts["wrong"] += 1
            print(f"{number} {version} {path}: {verdict.problem}", flush=True)
        elif chosen.v and verdict.fair and not verdict.accepted:
            print(f"{number} {version} {path}: refused: {verdict.reason[:200]}")
    print(dict(counts))
    enough = counts["fair and accepted"] >= 0.95 * counts["fair"]
    return 0 if enough and not counts["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
