"""Show what a commit did to the symbols that a seam reads."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository

if TYPE_CHECKING:
    from sgl_npu_patch.engine.text.block import Block

_LIKE = 0.6
"""How much of a definition must be the same in another one to be shown as what it became."""


def symbol_diff(
    repository: Repository, before: Mapping[str, Any], after: Mapping[str, Any], seam: str
) -> str:
    """Return the unified diff between two commits of just the symbols that a seam reads.

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
        """Return a file's text, empty if there is none."""
        try:
            data = self.repository.open(self.revision).read(PurePosixPath(path)) or b""
        except Refused:
            return ""
        return data.decode("utf-8", "replace")

    def cut(self, path: str, symbol: str) -> tuple[str, str]:
        """Return where a symbol stands, and its text, from the first changed file that has it."""
        for place in dict.fromkeys([path, *self.changed]):
            text = self.text(place)
            if symbol.rpartition(".")[2] in text:
                pieces = list(_pieces(place, text, symbol))
                if pieces:
                    return f"{place} {symbol}", "\n".join(pieces)
        return f"{path} {symbol}", ""

    def read(self, seam: str) -> set[str]:
        """List the files that are read to evaluate the seam alone."""
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
