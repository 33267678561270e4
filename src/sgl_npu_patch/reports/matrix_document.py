"""Read the document of `matrix` back into the types that every report prints.

The reports are made from the document, not from the run: what one of them says, the JSON says too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Evidence, Outcome
from sgl_npu_patch.reports.checks import failure_lines
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.text import evidence_lines
from sgl_npu_patch.verify.results import Result

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Hold what was found on one tree.

    Attributes:
        name: the tree as the user asked for it, on one line.
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
        key: a seam, ``check`` and the name of one, or empty where it is about the tree itself.
        commit: the upstream commit that brought it, as id, date and subject; empty if unknown.
        diff: what that commit did to the symbols that the seam reads.
    """

    name: str
    key: str
    before: str
    after: str
    commit: str
    diff: str

    def __str__(self) -> str:
        return f"{self.key or 'tree'} on {self.name}: {self.before} before, {self.after} now"


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
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """Hold a whole run.

    Attributes:
        baseline: the file that the run was compared with; empty if there was none.
        changes: what differs from it.
    """

    version: str
    trees: tuple[Tree, ...]
    baseline: str
    changes: tuple[Change, ...]

    @property
    def seams(self) -> tuple[str, ...]:
        """List the seams in the order of the series."""
        return tuple(dict.fromkeys(o.seam for tree in self.trees for o in tree.outcomes))

    @property
    def verified(self) -> bool:
        """Tell whether checks were asked for."""
        return any(tree.results for tree in self.trees)

    def known(self, name: str, key: str = "") -> bool:
        """Tell whether the baseline has what was found of a tree, as `Change.key` names it."""
        return bool(self.baseline) and not any(
            change.name == name and change.key in ("", key) for change in self.changes
        )


def read_matrix(document: Document) -> Matrix:
    """Read the whole document."""
    # Most commits of a range share what was found out about one of them.
    read: dict[int, tuple[Outcome, ...]] = {}
    return Matrix(
        document["tool"]["version"],
        tuple(_tree(each, read) for each in document["results"]),
        document.get("baseline") or "",
        tuple(_change(each) for each in document.get("changes", ())),
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
    if matrix.baseline or matrix.changes:
        told.append(f"{len(matrix.changes) or 'nothing'} new since the baseline")
    return ", ".join(told)


def named(names: Sequence[str], limit: int = 8) -> str:
    """List trees, the first few of many."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def remarks(matrix: Matrix) -> list[Remark]:
    """List what deserves a sentence, the serious first, the same on several trees once.

    Conflicts that differ only in where they are count as the same, and are shown as in the first
    of their trees.
    """
    first: dict[object, Remark] = {}
    names: dict[object, list[str]] = {}
    for tree in matrix.trees:
        for remark, same in _remarks(matrix, tree):
            key = (remark.title, remark.known, same)
            first.setdefault(key, remark)
            names.setdefault(key, []).append(tree.name)
    found = [
        replace(remark, names=tuple(names[key]))
        for key, remark in first.items()
        # What nobody has to act on is no news where the baseline has it.
        if remark.serious or not remark.known
    ]
    return sorted(found, key=lambda remark: (not remark.serious, remark.known))


def _remarks(matrix: Matrix, tree: Tree) -> Iterator[tuple[Remark, object]]:
    """Give what there is to remark, and what makes two of one title the same."""
    if tree.error:
        known = matrix.known(tree.name)
        yield Remark("not judged", "", (tree.error,), None, True, known), tree.error
    for outcome in tree.outcomes:
        seam, known = outcome.seam, matrix.known(tree.name, outcome.seam)
        site = next(iter(outcome.sites), None)
        if outcome.evidence is not None:
            lines = tuple(evidence_lines(seam, outcome.evidence)[1:])
            place = next(iter(outcome.evidence.where), site)
            same = replace(outcome.evidence, where=())
            yield Remark(f"conflict in {seam}", seam, lines, place, True, known), same
        elif outcome.status == "conflict":
            told = outcome.reason
            yield Remark(f"conflict in {seam}", seam, (told,), site, True, known), told
        elif outcome.status == "withheld":
            told = outcome.reason
            yield Remark(f"withheld: {seam}", seam, (told,), None, False, known), told
        elif outcome.gaps:
            told = ", ".join(outcome.gaps)
            yield Remark(f"gaps of {seam}", seam, (told,), None, False, known), told
    for result in tree.failures:
        lines = tuple(failure_lines(result)[1:])
        title = f"failed check {result.id}"
        known = matrix.known(tree.name, f"check {result.id}")
        yield Remark(title, result.seam, lines, result.site, True, known), lines


def _trees(count: int) -> str:
    return "1 tree" if count == 1 else f"{count} trees"


def _tree(document: Document, read: dict[int, tuple[Outcome, ...]]) -> Tree:
    tree = document.get("tree") or {}
    outcomes = document.get("outcomes", ())
    if id(outcomes) not in read:
        read[id(outcomes)] = tuple(_outcome(each) for each in outcomes)
    return Tree(
        name=visible(document["name"]),
        version=tree.get("version") or "",
        revision=tree.get("revision") or "",
        error=(document.get("error") or {}).get("message", ""),
        outcomes=read[id(outcomes)],
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
    told = [str(document[key]) for key in ("commit", "date", "subject") if document.get(key)]
    return Change(
        visible(document["name"]),
        document["seam"],
        document["before"],
        document["after"],
        " ".join(told),
        document.get("diff") or "",
    )
