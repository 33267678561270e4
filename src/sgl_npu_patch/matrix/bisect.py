"""Find the commits at which the statuses of seams change, by halving."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository
from sgl_npu_patch.matrix.baseline import MISSING, Facts, facts_of
from sgl_npu_patch.matrix.judge import Judge
from sgl_npu_patch.matrix.selection import Wanted

if TYPE_CHECKING:
    from sgl_npu_patch.engine.text.block import Block

_LIKE = 0.6
"""How much of a definition must be the same in another one to be shown as what it became."""


@dataclass(slots=True)
class History:
    """Judge the commits of one line of history, each once; ``commits[0]`` is the good end."""

    judge: Judge
    place: str
    commits: Sequence[str]
    _documents: dict[int, dict[str, Any]] = field(default_factory=dict)

    def facts(self, place: int) -> Facts:
        """Give the facts of the commit at a place."""
        return facts_of(self.document(place))

    def document(self, place: int) -> dict[str, Any]:
        """Give the document of the commit at a place."""
        if place not in self._documents:
            commit = self.commits[place]
            self._documents[place] = self.judge.document(
                Wanted(commit, "revision", self.place, commit)
            )
        return self._documents[place]

    @property
    def looked_at(self) -> list[int]:
        """List the places that were judged."""
        return sorted(self._documents)


@dataclass(frozen=True, slots=True)
class Found:
    """Say what came of a search; ``remarks`` tell where the history is not as it was taken for."""

    changes: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]
    commits: int
    judged: int


def bisect(judge: Judge, place: str, good: str, bad: str, seam: str | None) -> Found:
    """Find where the facts of a seam change on the first-parent history from good to bad.

    Args:
        seam: a seam's name; None for every one that differs between the two.

    Raises:
        Refused: a revision is unknown.
        UsageError: bad does not come after good, or nothing differs between them.
    """
    repository = judge.repository(place)
    since, until = repository.resolve(good), repository.resolve(bad)
    commits = repository.commits(since, until, first_parent=True)
    if not commits:
        raise UsageError(f"{bad} has no commits that {good} lacks: are --good and --bad swapped?")
    start = _parent(repository, commits[0])
    if start is None:
        raise UsageError(f"{good} and {bad} have no history in common")
    history = History(judge, place, [start, *commits])
    remarks = list(_beside(judge, place, history, since, good, seam))
    first, last = history.facts(0), history.facts(len(commits))
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
    changes = []
    for each in differing:
        steps = list(_steps(history, each))
        changes += [_change(repository, history, each, step) for step in steps]
        remarks += _unexpected(history, each, steps)
        if len(steps) > 1:
            remarks.append(f"{each or 'the tree'} changes {len(steps)} times on the way")
    order = {commit: number for number, commit in enumerate(commits)}
    changes.sort(key=lambda change: order[change["commit"]])
    return Found(tuple(changes), tuple(remarks), len(commits), len(history.looked_at))


def _beside(
    judge: Judge, place: str, history: History, since: str, good: str, seam: str | None
) -> Iterator[str]:
    """Say it where good is not on the line of history: the commit where that begins counts."""
    start = history.commits[0]
    if start == since:
        return
    beside = facts_of(judge.document(Wanted(since, "revision", place, since)))
    yield f"{good} is not on the first-parent history, which is searched from {start[:12]} on"
    for each in [seam] if seam else beside:
        if beside.get(each) != history.facts(0).get(each):
            yield (
                f"{each or 'the tree'} is {beside.get(each, MISSING)} at {good}, but "
                f"{history.facts(0).get(each, MISSING)} at {start[:12]}"
            )


def _steps(history: History, seam: str) -> Iterator[int]:
    """Find places at which the fact is another than one before, until it is that of the end."""
    low, end = 0, len(history.commits) - 1
    while history.facts(low).get(seam) != history.facts(end).get(seam):
        before, high = history.facts(low).get(seam), end
        while high - low > 1:
            middle = (low + high) // 2
            if history.facts(middle).get(seam) == before:
                low = middle
            else:
                high = middle
        yield high
        low = high


def _unexpected(history: History, seam: str, steps: Sequence[int]) -> Iterator[str]:
    """Name the commits that were looked at and do not fit into what was found."""
    for place in history.looked_at:
        at = max((step for step in steps if step <= place), default=0)
        found, fitting = (history.facts(each).get(seam, MISSING) for each in (place, at))
        if found != fitting:
            yield (
                f"{seam or 'the tree'} is {found} at {history.commits[place][:12]}, where "
                f"{fitting} would fit: it changes more often than is listed"
            )


def _change(repository: Repository, history: History, seam: str, place: int) -> dict[str, Any]:
    commit = history.commits[place]
    shown = repository.git(["show", "--no-patch", "--format=%aI%x00%s", "--end-of-options"], commit)
    date, _, subject = shown.stdout.decode("utf-8", "replace").rstrip("\n").partition("\0")
    before, after = history.facts(place - 1).get(seam), history.facts(place).get(seam)
    change = {"seam": seam, "commit": commit, "date": date, "subject": subject}
    diff = symbol_diff(repository, history.document(place - 1), history.document(place), seam)
    return change | {"before": before or MISSING, "after": after or MISSING, "diff": diff}


def _parent(repository: Repository, commit: str) -> str | None:
    try:
        return repository.resolve(f"{commit}^1")
    except Refused:
        return None


def symbol_diff(
    repository: Repository, before: Mapping[str, Any], after: Mapping[str, Any], seam: str
) -> str:
    """Give the unified diff between two commits of just the symbols that a seam reads.

    Where a symbol is gone, the files that changed are searched for its new place, and its own file
    for a new symbol that is much like it. Where none of the symbols differs, what made the
    difference is in other files that the seam reads; these are diffed whole.
    """
    old, new = (document["tree"]["revision"] for document in (before, after))
    changed = _changed(repository, old, new)
    symbols = dict.fromkeys([*_symbols(before, seam), *_symbols(after, seam)])
    sides = [_Side(repository, revision, changed) for revision in (old, new)]
    parts = [_diff(*_cut(sides[0], sides[1], *symbol)) for symbol in symbols]
    found = "".join(dict.fromkeys(parts))
    if found:
        return found
    read = {path for side in sides for path in side.read(seam)}
    return "".join(_diff(*((p, side.text(p)) for side in sides)) for p in changed if p in read)


def _cut(old: _Side, new: _Side, path: str, symbol: str) -> tuple[tuple[str, str], ...]:
    before, after = old.cut(path, symbol), new.cut(path, symbol)
    if before[1] and not after[1]:
        after = _like(before[1], path, old, new) or after
    elif after[1] and not before[1]:
        before = _like(after[1], path, new, old) or before
    return before, after


def _like(piece: str, path: str, here: _Side, there: _Side) -> tuple[str, str] | None:
    """Find what a symbol is on the other side: what is in its file there only, most like it."""
    known = {block.qualname for block in _blocks(path, here.text(path))[1]}
    text, blocks = _blocks(path, there.text(path))
    best, found = _LIKE, None
    for block in blocks:
        if block.kind != "import" and block.qualname not in known:
            other = text[block.start : block.end]
            matcher = difflib.SequenceMatcher(None, piece, other)
            if matcher.real_quick_ratio() > best and (likeness := matcher.ratio()) > best:
                best, found = likeness, (f"{path} {block.qualname}", other)
    return found


def _symbols(document: Mapping[str, Any], seam: str) -> Iterator[tuple[str, str]]:
    for outcome in document["outcomes"]:
        if outcome["seam"] == seam:
            where = outcome.get("evidence", {}).get("where", [])
            for site in [*outcome["sites"], *where]:
                if site["symbol"] and " " not in site["symbol"] and site["path"].endswith(".py"):
                    yield site["path"], site["symbol"]


def _changed(repository: Repository, old: str, new: str) -> list[str]:
    options = ["-r", "--no-renames", "--name-only", "--relative", "-z", "--end-of-options"]
    done = repository.git(["diff-tree", *options], old, new)
    names = os.fsdecode(done.stdout).split("\0")
    return [name for name in names if name.endswith(".py")]


@dataclass(slots=True)
class _Side:
    """Read one of the two commits."""

    repository: Repository
    revision: str
    changed: Sequence[str]

    def text(self, path: str) -> str:
        """Give a file's text, empty if there is none."""
        try:
            data = self.repository.open(self.revision).read(PurePosixPath(path)) or b""
        except Refused:
            return ""
        return data.decode("utf-8", "replace")

    def cut(self, path: str, symbol: str) -> tuple[str, str]:
        """Give the text of a symbol and where it stands, looked for in the file that has it."""
        for place in dict.fromkeys([path, *self.changed]):
            text = self.text(place)
            if symbol.rpartition(".")[2] in text:
                pieces = list(_pieces(place, text, symbol))
                if pieces:
                    return f"{place} {symbol}", "\n".join(pieces)
        return f"{path} {symbol}", ""

    def read(self, seam: str) -> set[str]:
        """List the files that judging the seam alone takes."""
        from sgl_npu_patch.codemods import SERIES
        from sgl_npu_patch.engine.plan import make_plan
        from sgl_npu_patch.engine.store import Traced

        try:
            tree = self.repository.open(self.revision)
            traced = Traced(tree, tree.package)
            make_plan(traced, SERIES, [seam, *SERIES[seam].needs] if seam else None)
        except (Refused, UsageError):
            return set()
        return {str(path) for path in traced.blobs}


def _pieces(path: str, text: str, symbol: str) -> Iterator[str]:
    source, blocks = _blocks(path, text)
    for block in blocks:
        if block.qualname == symbol and block.kind != "import":
            yield source[block.start : block.end]


def _blocks(path: str, text: str) -> tuple[str, tuple[Block, ...]]:
    from sgl_npu_patch.engine.text.source import read_source

    try:
        source = read_source(PurePosixPath(path), text.encode("utf-8"))
    except Refused:
        return text, ()
    return source.text, source.blocks


def _diff(old: tuple[str, str], new: tuple[str, str]) -> str:
    if old[1] == new[1]:
        return ""
    lines = difflib.unified_diff(
        old[1].splitlines(), new[1].splitlines(), f"a/{old[0]}", f"b/{new[0]}", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def blame(
    judge: Judge,
    place: str,
    changes: Sequence[dict[str, Any]],
    good: Sequence[tuple[str, str, str]],
) -> None:
    """Add to each new conflict of a revision the commit that made it, where that can be found.

    Args:
        changes: what differs from the baseline, each with the ``revision`` that was judged.
        good: seams with a status and a revision at which they had it.
    """
    repository = judge.repository(place)
    for change in changes:
        if change["after"] != "conflict" or not change["revision"]:
            continue
        since = {rev for seam, fact, rev in good if seam == change["seam"] and fact != "conflict"}
        nearest = _nearest(repository, since, change["revision"])
        with suppress(Refused, UsageError):
            if nearest:
                found = bisect(judge, place, nearest, change["revision"], change["seam"])
                made = [each for each in found.changes if each["after"] == "conflict"]
                for key in ("commit", "date", "subject", "diff") if made else ():
                    change[key] = made[-1][key]


def _nearest(repository: Repository, candidates: Iterable[str], bad: str) -> str:
    """Choose the revision after which the fewest commits lead to another one; none if none does."""
    counted = []
    for candidate in sorted(candidates):
        # The repository may not have any more what a baseline was made from.
        with suppress(Refused):
            both = ["--left-right", "--count", "--end-of-options"]
            done = repository.git(["rev-list", *both], f"{candidate}...{bad}")
            beside, after = map(int, done.stdout.split())
            if not beside and after:
                counted.append((after, candidate))
    return min(counted)[1] if counted else ""
