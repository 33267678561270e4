"""Judge every mutant of one release of every shape, and print which checks find them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.judge import GROUPS, Bench
from tests.faults.mutants import Mutant, compiles, mutants
from tests.refactor.project import SHAPES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--release", choices=SHAPES, action="append")
    parser.add_argument("--file")
    parser.add_argument("--vendored", action="store_true")
    parser.add_argument("--limit", type=int, default=0)
    chosen = parser.parse_args(arguments)
    for version in chosen.release or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            groups = ("handler", "dispatch", "batch_invariant", "sampler")
            if chosen.file:
                groups = GROUPS.get(chosen.file, ())
            bench = Bench(version, Path(folder), groups)
            print(version, "warm", round(time.time() - began, 1), file=sys.stderr, flush=True)
            for path, (before, after) in bench.changes.items():
                if chosen.file and path.name != chosen.file:
                    continue
                if not before and not chosen.vendored:
                    continue
                text = after.decode()
                made = mutants(path, before.decode(), text, bench.siblings)
                if chosen.limit:
                    made = made[:: max(1, len(made) // chosen.limit)]
                for m in made:
                    new = m.applied(text)
                    if not compiles(new):
                        continue
                    t = time.time()
                    found = bench.judge({path: new.encode()})
                    print(
                        json.dumps(
                            {
                                "release": version,
                                "kind": m.kind,
                                "line": m.line,
                                "key": m.key,
                                "static": [f.id for f in found if f.how == "static"],
                                "behaviour": [
                                    [f.id, f.message[:150]] for f in found if f.how == "behaviour"
                                ],
                                "s": round(time.time() - t, 2),
                            }
                        ),
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
