"""Find the commits at which the statuses of seams change, by halving.

The line of first parents is searched, as it is what a branch went through. Where a merge changes a
status, the commit that made the change is looked for on the side that was merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.engine.trees.repository import Repository
from sgl_npu_patch.matrix.baseline import MISSING, Statuses, statuses_of
from sgl_npu_patch.matrix.evaluate import Evaluator
from sgl_npu_patch.matrix.symbol_diff import symbol_diff
from sgl_npu_patch.matrix.trees import TreeRef


@dataclass(slots=True)
class Commits:
    """Evaluate commits of one repository, each once."""

    evaluator: Evaluator
    place: str
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def repository(self) -> Repository:
        """Return the repository that the commits are in."""
        return self.evaluator.repositories[self.place]

    def document(self, commit: str) -> dict[str, Any]:
        """Return the document of a commit."""
        if commit not in self.documents:
            ref = TreeRef(commit, "revision", self.place, commit)
            self.documents[commit] = self.evaluator.evaluate(ref).document
        return self.documents[commit]

    def statuses(self, commit: str) -> Statuses:
        """Return the statuses of a commit."""
        return statuses_of(self.document(commit))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of first parents: the commit that it starts from, then all after that."""

    seen: Commits
    commits: Sequence[str]

    def status(self, seam: str, place: int) -> str | None:
        """Return the status of a seam at a place of the line."""
        return self.seen.statuses(self.commits[place]).get(seam)

    def steps(self, seam: str) -> Iterator[int]:
        """Find places at which the status changes, until it is that of the end."""
        low, end = 0, len(self.commits) - 1
        while self.status(seam, low) != self.status(seam, end):
            before, high = self.status(seam, low), end
            while high - low > 1:
                middle = (low + high) // 2
                if self.status(seam, middle) == before:
                    low = middle
                else:
                    high = middle
            yield high
            low = high


@dataclass(frozen=True, slots=True)
class Bisection:
    """What came of a search.

    Attributes:
        changes: one dictionary a change, in the order of history.
        remarks: where the history is not as it was taken for.
        commits: how many there are after the one that the search began with.
        judged: how many were evaluated, that one included.
    """

    changes: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]
    commits: int
    judged: int


def bisect(evaluator: Evaluator, place: str, good: str, bad: str, seam: str | None) -> Bisection:
    """Find where the status of a seam changes in the history from good to bad.

    Args:
        seam: a seam's name; None for every one that differs between the two.

    Raises:
        Refused: a revision is unknown.
        UsageError: bad does not come after good, or nothing differs between them.
    """
    search = _Search(Commits(evaluator, place))
    repository = search.seen.repository
    since, until = repository.resolve(good), repository.resolve(bad)
    line = search.line(since, until)
    if line is None:
        if repository.commits(since, until, first_parent=True):
            raise UsageError(f"{good} and {bad} have no history in common")
        raise UsageError(f"{bad} has no commits that {good} lacks: are --good and --bad swapped?")
    remarks = list(_beside(line, since, good, seam))
    first, last = (line.seen.statuses(line.commits[end]) for end in (0, -1))
    # That one end was refused says it of every seam.
    refused = first[""] != last[""]
    seams = [seam] if seam else [""] if refused else list(first)
    differing = [each for each in seams if first.get(each) != last.get(each)]
    if not differing:
        what = f"{seam} is" if seam else "every seam is"
        same = f" {first[seam]}" if seam and seam in first else ""
        raise UsageError(
            f"{what}{same or ' the same'} both at {good} and at {bad}: there is nothing to find; "
            "name a revision at which it differs"
        )
    found: list[tuple[int, dict[str, Any]]] = []
    for each in differing:
        steps = list(line.steps(each))
        found += [(step, change) for step in steps for change in search.changes(line, each, step)]
        remarks += _unexpected(line, each, steps)
        if len(steps) > 1:
            remarks.append(f"{each or 'the tree'} changes {len(steps)} times on the way")
    found.sort(key=lambda pair: pair[0])
    changes = tuple(change for _, change in found)
    looked_at = search.seen.documents.keys()
    return Bisection(changes, tuple(remarks), len(search.searched | looked_at) - 1, len(looked_at))


@dataclass(slots=True)
class _Search:
    """Search lines, and those that were merged into them."""

    seen: Commits
    searched: set[str] = field(default_factory=set)

    def line(self, since: str, until: str) -> Line | None:
        """Return the line of a revision from where another one lacks it; None if it has no start.

        The start may stand aside from the other revision, which has merged it.
        """
        repository = self.seen.repository
        commits = repository.commits(since, until, first_parent=True)
        before = repository.parents(commits[0]) if commits else []
        if not before:
            return None
        self.searched.update(commits)
        return Line(self.seen, [before[0], *commits])

    def changes(
        self, line: Line, seam: str, step: int, merge: str = ""
    ) -> Iterator[dict[str, Any]]:
        """Describe the commit at a step, or those of the side that it merged which made its change.

        Args:
            merge: the commit that brought the line into the one that was asked about.
        """
        before, commit = line.commits[step - 1 : step + 1]
        for parent in self.seen.repository.parents(commit)[1:]:
            side = self.line(before, parent)
            if side is None:
                continue
            made = side.status(seam, -1) == line.status(seam, step)
            # Where the side already began with it, the merge undid what the first parent had.
            if made and side.status(seam, 0) != side.status(seam, -1):
                for inner in side.steps(seam):
                    yield from self.changes(side, seam, inner, merge or commit)
                return
        yield self._describe(seam, before, commit) | ({"merge": merge} if merge else {})

    def _describe(self, seam: str, before: str, commit: str) -> dict[str, Any]:
        shown = self.seen.repository.git(
            ["show", "--no-patch", "--format=%aI%x00%s", "--end-of-options"], commit
        )
        date, _, subject = shown.stdout.decode("utf-8", "replace").rstrip("\n").partition("\0")
        old, new = (self.seen.document(each) for each in (before, commit))
        return {
            "seam": seam,
            "commit": commit,
            "date": date,
            "subject": subject,
            "before": statuses_of(old).get(seam, MISSING),
            "after": statuses_of(new).get(seam, MISSING),
            "diff": symbol_diff(self.seen.repository, old, new, seam),
        }


def _beside(line: Line, since: str, good: str, seam: str | None) -> Iterator[str]:
    """Yield remarks where good is not on the line: the commit where that begins counts."""
    start = line.commits[0]
    if start == since:
        return
    beside = line.seen.statuses(since)
    yield f"{good} is not on the first-parent history, which is searched from {start[:12]} on"
    for each in [seam] if seam else beside:
        if beside.get(each) != line.status(each, 0):
            yield (
                f"{each or 'the tree'} is {beside.get(each, MISSING)} at {good}, but "
                f"{line.status(each, 0) or MISSING} at {start[:12]}"
            )


def _unexpected(line: Line, seam: str, steps: Sequence[int]) -> Iterator[str]:
    """Yield a remark for each evaluated commit that does not fit into what was found."""
    for place, commit in enumerate(line.commits):
        if commit not in line.seen.documents:
            continue
        at = max((step for step in steps if step <= place), default=0)
        found, fitting = (line.status(seam, each) or MISSING for each in (place, at))
        if found != fitting:
            yield (
                f"{seam or 'the tree'} is {found} at {commit[:12]}, where "
                f"{fitting} would fit: it changes more often than is listed"
            )
