"""Judge named faults and mutants of one release of every shape, and write the docs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from tests.faults.equivalent import EQUIVALENT, REASONS
from tests.faults.judge import GROUPS, Bench, Failure
from tests.faults.mutants import KINDS, Mutant, compiles, mutants
from tests.faults.named import FAULTS
from tests.refactor.kinds import KINDS as REFACTORINGS
from tests.refactor.project import SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "faults.md"
EXECUTED = SHAPES[-1]
"""Mutants of this release are executed even if their text shows them, to know what both kinds of
checks find. The vendored modules, which are the same in every release, are mutated in it alone."""

_VENDORED = "vendored modules"
_UNFAIR = "not compiled"
_HOW = ("static", "compared", "behaviour")
_COLUMNS = ("judged", "static", "compared", "executed", "behaviour", "equivalent", "survived")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what found a fault: the ids of checks of each kind.

    ``kind`` is "named" or a mutant's; ``executed`` tells whether behaviour was looked at.
    """

    release: str
    kind: str
    key: str
    vendored: bool
    executed: bool
    static: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    behaviour: tuple[str, ...] = ()

    @property
    def found_by(self) -> tuple[str, ...]:
        """Give the checks that count.

        The checksum finds every mutant of a vendored module, so what it does is what counts.
        """
        read = () if self.vendored else (*self.static, *self.compared)
        return (*read, *self.behaviour)

    @property
    def equivalent(self) -> bool:
        """Tell whether a mutant that nothing found is listed with a reason."""
        return not self.found_by and self.key in EQUIVALENT

    @property
    def survived(self) -> bool:
        """Tell whether nothing found it, and nothing excuses that."""
        return not self.found_by and not self.equivalent


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--release", choices=SHAPES, action="append")
    parser.add_argument("--file", action="append", help="mutate files of that name only")
    parser.add_argument("--sample", type=int, help="judge that many mutants a release")
    parser.add_argument("--vendored", type=int, default=200, help="sampled of the vendored modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("named", "mutants", "refactorings"), action="append")
    parser.add_argument("--quick", action="store_true", help="run a fault's own checks only")
    parser.add_argument(
        "--execute", action="store_true", help=f"as of {EXECUTED}, execute all mutants of each"
    )
    parser.add_argument("--results", type=Path, help="keep verdicts there, and take over what is")
    parser.add_argument("--write", action="store_true", help="write docs/evidence/faults.md")
    chosen = parser.parse_args(arguments)
    problems: list[str] = []
    verdicts: list[Verdict] = []
    made = Counter[str]()
    for version in chosen.release or SHAPES:
        with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-faults-") as folder:
            run = _Run(version, Path(folder), chosen)
            verdicts += run.verdicts()
            problems += (f"{version}: {problem}" for problem in run.problems)
            made += run.made
    for problem in problems:
        print(problem)
    print(mutants_table(verdicts, made))
    if chosen.write:
        PAGE.write_text(page(verdicts, made), encoding="utf-8")
    return 1 if problems else 0


class _Run:
    """Judge one release."""

    def __init__(self, version: str, folder: Path, chosen: argparse.Namespace) -> None:
        self.version = version
        self.problems: list[str] = []
        self.made = Counter[str]()
        self._folder = folder
        self._chosen = chosen
        self._known = _read(chosen.results, version)

    @cached_property
    def _bench(self) -> Bench:
        return Bench(self.version, self._folder)

    def verdicts(self) -> Iterator[Verdict]:
        """Judge what is chosen, and note what is wrong."""
        chosen = self._chosen.only or ("named", "mutants", "refactorings")
        if "named" in chosen:
            yield from map(self._named, [n for n, f in FAULTS.items() if f.release == self.version])
        if "mutants" in chosen:
            yield from map(self._mutant, self._mutants())
        if "refactorings" in chosen:
            for kind in REFACTORINGS:
                self._refactoring(kind)

    def _named(self, name: str) -> Verdict:
        fault = FAULTS[name]
        verdict = self._known.get(("named", name))
        if verdict is None:
            only = fault.ids if self._chosen.quick else ()
            files = fault.files(self._bench.texts)
            failures = self._bench.judge(files, only=only, thorough=True)
            verdict = self._keep("named", name, failures, executed=True)
        found = {*verdict.found_by}
        if not fault.ids & found:
            told = ", ".join(sorted(found)) or "nothing"
            self.problems.append(f"{name}: none of {', '.join(sorted(fault.ids))}, but {told}")
        seams = {check.partition(".")[0] for check in found}
        if others := seams - {"series", "tree", fault.seam, *fault.also}:
            self.problems.append(f"{name}: {', '.join(sorted(others))} named for {fault.seam}")
        return verdict

    def _mutants(self) -> list[Mutant]:
        made = [
            mutant
            for path, (before, after) in self._bench.changes.items()
            if not self._chosen.file or path.name in self._chosen.file
            if before or self.version == EXECUTED
            for mutant in mutants(path, before.decode(), after.decode(), self._bench.siblings)
        ]
        fair = [m for m in made if compiles(m.applied(self._bench.texts[m.path]))]
        self.made[_UNFAIR] = len(made) - len(fair)
        own = [mutant for mutant in fair if not self._is_vendored(mutant)]
        vendored = [mutant for mutant in fair if self._is_vendored(mutant)]
        self.made.update({self.version: len(own), _VENDORED: len(vendored)})
        rng = Random(f"{self._chosen.seed} {self.version}")
        if self._chosen.sample is not None:
            own = rng.sample(own, min(self._chosen.sample, len(own)))
        return [*own, *rng.sample(vendored, min(self._chosen.vendored, len(vendored)))]

    def _is_vendored(self, mutant: Mutant) -> bool:
        return not self._bench.changes[mutant.path][0]

    def _mutant(self, mutant: Mutant) -> Verdict:
        vendored = self._is_vendored(mutant)
        verdict = self._known.get((mutant.kind, mutant.key))
        if verdict is None:
            text = mutant.applied(self._bench.texts[mutant.path])
            sparing = self.version != EXECUTED and not self._chosen.execute
            failures = self._bench.judge({mutant.path: text.encode()}, sparing=sparing)
            executed = not sparing or all(f.how == "behaviour" for f in failures)
            verdict = self._keep(
                mutant.kind, mutant.key, failures, vendored=vendored, executed=executed
            )
        if verdict.survived and not vendored:
            self.problems.append(f"survived: {mutant.kind}: line {mutant.line}: {mutant.key}")
        return verdict

    def _keep(
        self,
        kind: str,
        key: str,
        failures: Sequence[Failure],
        *,
        executed: bool,
        vendored: bool = False,
    ) -> Verdict:
        by = {how: tuple(f.id for f in failures if f.how == how) for how in _HOW}
        verdict = Verdict(self.version, kind, key, vendored, executed, **by)
        self._tell(f"{kind}: {key}", failures)
        if self._chosen.results:
            with self._chosen.results.open("a", encoding="utf-8") as file:
                print(json.dumps(asdict(verdict)), file=file)
        return verdict

    def _refactoring(self, kind: str) -> None:
        """Insist that a tree which was only refactored passes."""
        for number in range(40):
            rng = Random(f"{self._chosen.seed} {kind} {number}")
            try:
                case = REFACTORINGS[kind](rng, self.version)
            except LookupError:
                continue
            before = self._bench.differing(case.files)
            after = self._bench.patched(before)
            # Some inserted statements name what nothing binds: they can be read, not executed.
            unbound = any(b"noted_flag" in d or b"noted.count" in d for d in before.values())
            if after is None or unbound:
                continue
            groups = [*dict.fromkeys(g for path in before for g in GROUPS.get(path.name, ()))]
            failures = self._bench.judge(after, groups=groups, thorough=True, before=before)
            self._tell(f"refactoring: {kind} of {case.touched}", failures)
            self.problems += (
                f"false alarm: {kind} of {case.touched}: {f.id}: {f.message}" for f in failures
            )
            return

    def _tell(self, what: str, failures: Iterable[Failure]) -> None:
        told = f"{self.version}: {what}: {', '.join(f.id for f in failures)}"
        print(told[:300], file=sys.stderr, flush=True)


def _read(results: Path | None, version: str) -> dict[tuple[str, str], Verdict]:
    if results is None or not results.exists():
        return {}
    lines = map(json.loads, results.read_text("utf-8").splitlines())
    found = (Verdict(**{**line, **{how: tuple(line[how]) for how in _HOW}}) for line in lines)
    return {(v.kind, v.key): v for v in found if v.release == version}


def mutants_table(verdicts: Iterable[Verdict], made: Counter[str]) -> str:
    """Count by release and kind what found the mutants.

    Args:
        made: how many mutants each release has, of which those judged may be a sample.
    """
    rows: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        if verdict.kind not in KINDS:
            continue
        where = _VENDORED if verdict.vendored else verdict.release
        counts = rows.setdefault((where, verdict.kind), Counter())
        counts["judged"] += 1
        counts.update(how for how in _HOW if getattr(verdict, how))
        counts.update(
            name for name in ("executed", "equivalent", "survived") if getattr(verdict, name)
        )
    lines = [
        f"| tree | mutants | {' | '.join(_COLUMNS)} |",
        f"|---|---|{'---:|' * len(_COLUMNS)}",
    ]
    for where in dict.fromkeys(where for where, _ in rows):
        total = Counter[str]()
        for kind, what in KINDS.items():
            if counts := rows.get((where, kind), Counter()):
                total += counts
                lines.append(_row(where, what, counts))
        lines.append(_row(where, f"**all**, of {made[where]}", total))
    lines.append(f"\n{made[_UNFAIR]} more did not compile.")
    return "\n".join(lines) + "\n"


def _row(where: str, what: str, counts: Counter[str]) -> str:
    return f"| {where} | {what} | {' | '.join(str(counts[column]) for column in _COLUMNS)} |"


def named_table(verdicts: Iterable[Verdict]) -> str:
    """List the named faults with the checks that find them, those of their own seam first."""
    lines = ["| fault | release | seam | found by |", "|---|---|---|---|"]
    for verdict in verdicts:
        if verdict.kind == "named":
            seam = FAULTS[verdict.key].seam
            own = sorted(verdict.found_by, key=lambda check: not check.startswith(f"{seam}."))
            shown = ", ".join(f"`{check}`" for check in own[:4])
            more = f" and {len(own) - 4} more" if len(own) > 4 else ""
            lines.append(f"| {verdict.key} | {verdict.release} | {seam} | {shown}{more} |")
    return "\n".join(lines) + "\n"


def page(verdicts: Sequence[Verdict], made: Counter[str]) -> str:
    """Write the page."""
    reasons = "".join(
        f"\n- {reason}\n" + "".join(f"  - `{key}`\n" for key in keys)
        for reason, keys in REASONS.items()
    )
    refactorings = "".join(
        f"- {(make.__doc__ or '').partition(chr(10))[0]}\n" for make in REFACTORINGS.values()
    )
    return HEAD.format(
        mutants=mutants_table(verdicts, made),
        executed=EXECUTED,
        reasons=reasons,
        named=named_table(verdicts),
        refactorings=refactorings,
    )


HEAD = """\
# Faults that `verify` finds

A check is worth what it finds. This page counts which of many faults, put into patched trees one at
a time, make `verify --base` fail. Written by `python -m tests.faults --write`; `make test` judges
all named faults and a seeded sample of the mutants.

## Mutants

Made mechanically from every token that the series inserts or changes, on one release of every
shape. Comments, annotations and docstrings are left alone. *static* counts the mutants that the
checks of the tree's text find, *compared* those that the comparison with the unpatched tree finds,
*behaviour* those that the checks on the simulated NPU find, each by itself; execution ends at the
first check that fails. *executed* is every mutant on {executed}, elsewhere at least each whose text
shows nothing. Every mutant of the vendored modules is found by their checksum; a sample of them is
judged by behaviour alone, and what *survives* there is for tests/npu_ops to find.

{mutants}
### Equivalent mutants

No fault, for the reason given; the list is `tests/faults/equivalent.py`. A fork that has one of
these is not wrong.
{reasons}
## Named faults

What a wrong patch, a merge or a well-meant edit would bring in. Each is found, and every check that
fails names the seam, or one that the fault concerns as well.

{named}
## No false alarm

These change nothing of what a tree does, and patched trees that were refactored so pass:

{refactorings}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
