"""Judge named faults and mutants of one release of every shape, and write the docs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.faults.equivalent import EQUIVALENT
from tests.faults.judge import GROUPS, Bench, Failure
from tests.faults.mutants import KINDS, Mutant, compiles, mutants
from tests.faults.named import FAULTS, Fault
from tests.refactor.kinds import KINDS as REFACTORINGS
from tests.refactor.project import SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
EXECUTED = SHAPES[-1]
"""Mutants of this release are executed even if their text shows them, to know what both kinds of
checks find. The vendored modules, which are the same in every release, are mutated in it alone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what found a mutant: ids of checks of each kind."""

    release: str
    kind: str
    key: str
    vendored: bool
    executed: bool
    static: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    behaviour: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        """Tell whether `verify` found nothing.

        The checksum finds every mutant of a vendored module, so what it does is what counts.
        """
        read = () if self.vendored else (*self.static, *self.compared)
        return not (*read, *self.behaviour)


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--release", choices=SHAPES, action="append")
    parser.add_argument("--file", action="append", help="mutate files of that name only")
    parser.add_argument("--sample", type=int, help="judge that many mutants a release")
    parser.add_argument("--vendored", type=int, default=200, help="sampled from the vendored files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--execute",
        action="store_true",
        help=f"execute the mutants of each release, not those of {EXECUTED} only",
    )
    parser.add_argument("--only", choices=("named", "mutants", "refactorings"), action="append")
    parser.add_argument("--quick", action="store_true", help="run a fault's own checks only")
    parser.add_argument("--results", type=Path, help="keep the mutants' verdicts in that file")
    parser.add_argument("--write", action="store_true", help="write docs/faults.md")
    chosen = parser.parse_args(arguments)
    problems: list[str] = []
    named: dict[str, list[Failure]] = {}
    verdicts: list[Verdict] = []
    skipped = Counter[str]()
    for version in chosen.release or SHAPES:
        with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-faults-") as folder:
            run = _Run(version, Path(folder), chosen)
            named |= run.named()
            for verdict in run.mutants(skipped):
                verdicts.append(verdict)
                if chosen.results:
                    with chosen.results.open("a", encoding="utf-8") as file:
                        print(json.dumps(asdict(verdict)), file=file)
                if verdict.survived and not verdict.vendored and verdict.key not in EQUIVALENT:
                    run.problems.append(f"survived: {verdict.kind}: {verdict.key}")
            run.refactorings()
            problems += (f"{version}: {problem}" for problem in run.problems)
    for problem in problems:
        print(problem)
    print(table(verdicts, skipped))
    if chosen.write:
        PAGE.write_text(page(named, verdicts, skipped), encoding="utf-8")
    return 1 if problems else 0


class _Run:
    """Judge one release."""

    def __init__(self, version: str, folder: Path, chosen: argparse.Namespace) -> None:
        self.version = version
        self.problems: list[str] = []
        self._chosen = chosen
        self._only = chosen.only or ("named", "mutants", "refactorings")
        self._faults = {name: f for name, f in FAULTS.items() if f.release == version}
        self._bench = Bench(version, folder)
        self._texts = {path: after.decode() for path, (_, after) in self._bench.changes.items()}

    def named(self) -> dict[str, list[Failure]]:
        """Judge the named faults of the release."""
        if "named" not in self._only:
            return {}
        found = {}
        for name, fault in self._faults.items():
            only = fault.ids if self._chosen.quick else ()
            failures = self._bench.judge(fault.files(self._texts), only=only, thorough=True)
            found[name] = failures
            self.problems += (f"{name}: {problem}" for problem in _wrong(fault, failures))
            self._tell(f"{name}: {', '.join(f.id for f in failures)}")
        return found

    def mutants(self, skipped: Counter[str]) -> Iterator[Verdict]:
        """Judge the mutants of the release."""
        if "mutants" not in self._only:
            return
        made = [m for m in self._made() if compiles(m.applied(self._texts[m.path]))]
        skipped[self.version] = len(self._made()) - len(made)
        own, vendored = ([m for m in made if self._vendored(m) is v] for v in (False, True))
        rng = Random(f"{self._chosen.seed} {self.version}")
        if self._chosen.sample is not None:
            own = rng.sample(own, min(self._chosen.sample, len(own)))
        if self.version != EXECUTED:
            vendored = []
        for mutant in (*own, *rng.sample(vendored, min(self._chosen.vendored, len(vendored)))):
            yield self._judged(mutant)

    def _made(self) -> list[Mutant]:
        made: list[Mutant] = []
        for path, (before, after) in self._bench.changes.items():
            if not self._chosen.file or path.name in self._chosen.file:
                made += mutants(path, before.decode(), after.decode(), self._bench.siblings)
        return made

    def _vendored(self, mutant: Mutant) -> bool:
        return not self._bench.changes[mutant.path][0]

    def _judged(self, mutant: Mutant) -> Verdict:
        text = mutant.applied(self._texts[mutant.path])
        sparing = self.version != EXECUTED and not self._chosen.execute
        failures = self._bench.judge({mutant.path: text.encode()}, sparing=sparing)
        read = any(failure.how != "behaviour" for failure in failures)
        by = {how: tuple(f.id for f in failures if f.how == how) for how in _HOW}
        self._tell(f"{mutant.kind}: {mutant.key}: {', '.join(f.id for f in failures)}")
        vendored, executed = self._vendored(mutant), not (sparing and read)
        return Verdict(self.version, mutant.kind, mutant.key, vendored, executed, **by)

    def refactorings(self) -> None:
        """Insist that a tree which was only refactored passes."""
        if "refactorings" not in self._only:
            return
        for kind, make in REFACTORINGS.items():
            for number in range(40):
                try:
                    case = make(Random(f"{self._chosen.seed} {kind} {number}"), self.version)
                except LookupError:
                    continue
                before = self._bench.differing(case.files)
                after = self._bench.patched(before)
                if after is None:
                    continue
                groups = [*dict.fromkeys(g for p in after for g in GROUPS.get(p.name, ()))]
                failures = self._bench.judge(after, groups=groups, thorough=True, before=before)
                self._tell(f"{kind} {case.touched}: {', '.join(f.id for f in failures)}")
                self.problems += (
                    f"false alarm: {kind} of {case.touched}: {f.id}: {f.message}" for f in failures
                )
                break

    def _tell(self, text: str) -> None:
        print(f"{self.version}: {text[:300]}", file=sys.stderr, flush=True)


_COLUMNS = ("made", "static", "compared", "executed", "behaviour", "equivalent", "survived")
_HOW = ("static", "compared", "behaviour")


def _wrong(fault: Fault, failures: Sequence[Failure]) -> Iterator[str]:
    """Say what is wrong about how a fault was found."""
    if not fault.ids & {failure.id for failure in failures}:
        found = ", ".join(failure.id for failure in failures) or "nothing"
        yield f"none of {', '.join(sorted(fault.ids))} fails, but {found}"
    others = {failure.seam for failure in failures} - {fault.seam, *fault.also}
    if others:
        yield f"seams {', '.join(sorted(others))} are named for {fault.seam}"


def table(verdicts: Iterable[Verdict], skipped: Counter[str]) -> str:
    """Count by release and kind what found the mutants."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        where = "vendored modules" if verdict.vendored else verdict.release
        counts = rows.setdefault((where, verdict.kind), Counter())
        counts["made"] += 1
        for how in _HOW:
            counts[how] += bool(getattr(verdict, how))
        counts["executed"] += verdict.executed
        counts["equivalent"] += verdict.survived and verdict.key in EQUIVALENT
        counts["survived"] += verdict.survived and verdict.key not in EQUIVALENT
    lines = [
        f"| tree | mutants | {' | '.join(_COLUMNS)} |",
        f"|---|---|{'---:|' * len(_COLUMNS)}",
    ]
    for where in dict.fromkeys(where for where, _ in rows):
        for kind in KINDS:
            if counts := rows.get((where, kind), Counter()):
                cells = " | ".join(str(counts[column]) for column in _COLUMNS)
                lines.append(f"| {where} | {KINDS[kind]} | {cells} |")
    lines += [
        f"\n{sum(skipped.values())} more did not compile." if skipped else "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def page(
    named: dict[str, list[Failure]], verdicts: Sequence[Verdict], skipped: Counter[str]
) -> str:
    """Write the page."""
    return table(verdicts, skipped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
