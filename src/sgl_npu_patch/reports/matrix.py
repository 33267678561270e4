"""Read the document of `matrix`, and find what deserves a sentence in any report of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Outcome
from sgl_npu_patch.reports import conflicts
from sgl_npu_patch.reports.checks_text import failure_lines
from sgl_npu_patch.reports.codec import Document, Tree, read_tree
from sgl_npu_patch.reports.console import counted
from sgl_npu_patch.reports.plain import visible


@dataclass(frozen=True, slots=True)
class Change:
    """A status that differs from the baseline's.

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
    """What deserves a sentence, once for all trees that it holds for.

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
    """A whole run.

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
        """Report whether checks were asked for."""
        return any(tree.results for tree in self.trees)

    def known(self, name: str, key: str = "") -> bool:
        """Report whether the baseline has what was found of a tree, as `Change.key` names it."""
        return bool(self.baseline) and not any(
            change.name == name and change.key in ("", key) for change in self.changes
        )


def read_matrix(document: Document) -> Matrix:
    """Read the whole document."""
    # Most commits of a range share what was found out about one of them.
    read: dict[int, tuple[Outcome, ...]] = {}
    return Matrix(
        document["tool"]["version"],
        tuple(read_tree(each, read) for each in document["results"]),
        document.get("baseline") or "",
        tuple(_change(each) for each in document.get("changes", ())),
    )


def checks_said(tree: Tree) -> str:
    """Return in short how the checks went."""
    if not tree.results:
        return ""
    return f"{len(tree.failures)} FAIL" if tree.failures else "pass"


def headline(matrix: Matrix) -> str:
    """Count what was found."""
    counts = {
        "not examined": sum(bool(tree.error) for tree in matrix.trees),
        "in conflict": sum(
            any(o.status == "conflict" for o in tree.outcomes) for tree in matrix.trees
        ),
        "with failed checks": sum(bool(tree.failures) for tree in matrix.trees),
    }
    told = [counted(len(matrix.trees), "tree")]
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
    """Yield each remark on a tree, with what makes two of one title the same."""
    if tree.error:
        known = matrix.known(tree.name)
        yield Remark("not examined", "", (tree.error,), None, True, known), tree.error
    for known in (False, True):
        here = [o for o in tree.outcomes if matrix.known(tree.name, o.seam) == known]
        for evidence, seams in conflicts.causes(here):
            lines = tuple(conflicts.evidence_lines(evidence))
            site = next(iter(evidence.where), None)
            same = replace(evidence, where=())
            title = conflicts.title(seams)
            yield Remark(title, ", ".join(seams), lines, site, True, known), same
        for outcome in here:
            if outcome.status == "withheld":
                seam, reason = outcome.seam, outcome.reason
                yield Remark(f"withheld: {seam}", seam, (reason,), None, False, known), reason
    for gap in tree.gaps:
        lines, known = tuple(conflicts.gap_lines(gap)), matrix.known(tree.name, gap.seam)
        title = f"gap {gap.name} of {gap.seam}"
        yield Remark(title, gap.seam, lines, None, False, known), lines
    for result in tree.failures:
        lines = tuple(failure_lines(result)[1:])
        title, known = f"failed check {result.id}", matrix.known(tree.name, f"check {result.id}")
        yield Remark(title, result.seam, lines, result.site, True, known), lines


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
