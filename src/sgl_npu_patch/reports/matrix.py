"""Read the document of `matrix` back into the types that every report prints.

The reports are made from the document, not from the run: what one of them says, the JSON says too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.plan import Evidence, Outcome
from sgl_npu_patch.reports.checks import failure_lines
from sgl_npu_patch.reports.text import evidence_lines
from sgl_npu_patch.verify.results import Result

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Hold what was found on one tree.

    Attributes:
        name: the tree as the user asked for it.
        error: why it could not be judged; there are no outcomes then.
        results: of the checks, where they were asked for.
        diff: what `apply` would change.
    """

    name: str
    version: str
    revision: str
    error: str
    outcomes: tuple[Outcome, ...]
    results: tuple[Result, ...]
    diff: str

    @property
    def failures(self) -> tuple[Result, ...]:
        """List the checks that fail."""
        return tuple(result for result in self.results if result.verdict == "fail")

    def outcome(self, seam: str) -> Outcome | None:
        """Give the outcome of a seam, None where it was not judged."""
        return next((each for each in self.outcomes if each.seam == seam), None)


@dataclass(frozen=True, slots=True)
class Change:
    """Tell of a status that differs from the baseline's.

    Attributes:
        commit: the upstream commit that brought it, as id, date and subject; empty if unknown.
    """

    name: str
    seam: str
    before: str
    after: str
    commit: str

    def __str__(self) -> str:
        return f"{self.seam or 'tree'} on {self.name}: {self.before} before, {self.after} now"


@dataclass(frozen=True, slots=True)
class Remark:
    """Tell what deserves a sentence, once for all trees that it holds for.

    Attributes:
        serious: it is something to act on, rather than to know.
        known: the baseline has it.
    """

    title: str
    seam: str
    lines: tuple[str, ...]
    site: Site | None
    serious: bool
    known: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Hold a whole run.

    Attributes:
        changes: what differs from the baseline; None where there is no baseline.
    """

    version: str
    trees: tuple[Tree, ...]
    changes: tuple[Change, ...] | None

    @property
    def seams(self) -> tuple[str, ...]:
        """List the seams in the order of the series."""
        return tuple(dict.fromkeys(o.seam for tree in self.trees for o in tree.outcomes))

    @property
    def verified(self) -> bool:
        """Tell whether checks were asked for."""
        return any(tree.results for tree in self.trees)

    def known(self, name: str, seam: str = "") -> bool:
        """Tell whether the baseline has what was found; of the whole tree if no seam is given."""
        if self.changes is None:
            return False
        return not any(c.name == name and (not seam or c.seam == seam) for c in self.changes)


def read_matrix(document: Document) -> Matrix:
    """Read the whole document."""
    changes = document.get("changes")
    return Matrix(
        document["tool"]["version"],
        tuple(_tree(each) for each in document["results"]),
        None if changes is None else tuple(_change(each) for each in changes),
    )


def said(outcome: Outcome) -> str:
    """Say a status in full."""
    notes = ["outdated"] if outcome.outdated else []
    if outcome.gaps:
        notes.append("1 gap" if len(outcome.gaps) == 1 else f"{len(outcome.gaps)} gaps")
    return f"{outcome.status} ({', '.join(notes)})" if notes else outcome.status


def checks_said(tree: Tree) -> str:
    """Say in short how the checks went."""
    if not tree.results:
        return ""
    return f"{len(tree.failures)} FAIL" if tree.failures else "pass"


def headline(matrix: Matrix) -> str:
    """Count what was found."""
    counts = {
        "not judged": sum(bool(tree.error) for tree in matrix.trees),
        "in conflict": sum(
            any(o.status == "conflict" for o in tree.outcomes) for tree in matrix.trees
        ),
        "with failed checks": sum(bool(tree.failures) for tree in matrix.trees),
    }
    told = [f"{_trees(len(matrix.trees))}"]
    told += [f"{count} {what}" for what, count in counts.items() if count]
    if len(told) == 1:
        told.append("no conflict")
    if matrix.changes is not None:
        told.append(f"{len(matrix.changes) or 'nothing'} new since the baseline")
    return ", ".join(told)


def named(names: Sequence[str], limit: int = 8) -> str:
    """List trees, the first few of many."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def remarks(matrix: Matrix) -> list[Remark]:
    """List what deserves a sentence, the serious first, the same on several trees once."""
    trees: dict[tuple[Any, ...], list[str]] = {}
    for tree in matrix.trees:
        for title, seam, lines, site, serious, known in _remarks(matrix, tree):
            trees.setdefault((title, seam, tuple(lines), site, serious, known), []).append(
                tree.name
            )
    found = [Remark(*key, tuple(names)) for key, names in trees.items()]
    return sorted(found, key=lambda remark: (not remark.serious, remark.known))


def _remarks(matrix: Matrix, tree: Tree) -> Iterator[tuple[Any, ...]]:
    if tree.error:
        yield "not judged", "", [tree.error], None, True, matrix.known(tree.name)
    for outcome in tree.outcomes:
        seam, known = outcome.seam, matrix.known(tree.name, outcome.seam)
        site = outcome.sites[0] if outcome.sites else None
        if outcome.evidence is not None:
            place = next(iter(outcome.evidence.where), site)
            lines = evidence_lines(seam, outcome.evidence)[1:]
            yield f"conflict in {seam}", seam, lines, place, True, known
        elif outcome.status == "conflict":
            yield f"conflict in {seam}", seam, [outcome.reason], site, True, known
        elif outcome.status == "withheld":
            yield f"withheld: {seam}", seam, [outcome.reason], None, False, known
        elif outcome.gaps:
            yield f"gaps of {seam}", seam, [", ".join(outcome.gaps)], None, False, known
    for result in tree.failures:
        lines = failure_lines(result)[1:]
        yield f"failed check {result.id}", result.seam, lines, result.site, True, False


def _trees(count: int) -> str:
    return "1 tree" if count == 1 else f"{count} trees"


def _tree(document: Document) -> Tree:
    tree = document.get("tree") or {}
    return Tree(
        name=document["name"],
        version=tree.get("version") or "",
        revision=tree.get("revision") or "",
        error=(document.get("error") or {}).get("message", ""),
        outcomes=tuple(_outcome(each) for each in document.get("outcomes", ())),
        results=tuple(_result(each) for each in document.get("checks", ())),
        diff=document.get("diff", ""),
    )


def _outcome(document: Document) -> Outcome:
    evidence = document.get("evidence")
    if evidence is not None:
        evidence = Evidence(**{**evidence, "where": _sites(evidence["where"])})
    return Outcome(
        document["seam"],
        document["status"],
        _sites(document["sites"]),
        document["reason"],
        tuple(document["gaps"]),
        document["outdated"],
        evidence,
    )


def _result(document: Document) -> Result:
    site = document["site"]
    return Result(**{**document, "site": None if site is None else _site(site)})


def _sites(documents: Sequence[Document]) -> tuple[Site, ...]:
    return tuple(_site(each) for each in documents)


def _site(document: Document) -> Site:
    return Site(PurePosixPath(document["path"]), document["line"], document["symbol"])


def _change(document: Document) -> Change:
    commit = document.get("commit") or {}
    told = [str(commit[key]) for key in ("commit", "date", "subject") if commit.get(key)]
    return Change(
        document["name"],
        document["seam"],
        document["before"],
        document["after"],
        " ".join(told),
    )
