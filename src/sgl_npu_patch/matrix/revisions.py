"""Find the revisions that globs, names and ranges stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.trees.repository import Repository
from sgl_npu_patch.matrix.trees import TreeRef, by_version

_GLOB = re.compile(r"[*?\[]")
_KINDS = ("refs/tags/", "refs/heads/", "refs/remotes/")
_SHOWN = 5
_DIGITS = 12
"""How many digits of an id name a commit of a range."""


def select_revisions(
    repository: Repository,
    patterns: Sequence[str],
    *,
    first_parent: bool = False,
    touching: bool = False,
) -> Iterator[TreeRef]:
    """Find the revisions that globs over tags and branches, names and ranges stand for.

    Args:
        first_parent: follow a range along the first parents only.
        touching: take only those commits of a range that change a file which the series reads.

    Raises:
        Refused: nothing has such a name.
        UsageError: a range is not A..B.
    """
    paths = files_read(repository, _ends_of(patterns)) if touching else ()
    for pattern in patterns:
        if ".." in pattern:
            commits = _range(repository, pattern, first_parent, paths)
            for before, commit in zip(["", *commits], commits, strict=False):
                name = commit[:_DIGITS]
                yield TreeRef(name, "revision", str(repository.path), commit, before)
            continue
        if _GLOB.search(pattern):
            refs = _refs(repository)
            found = [(name, commit) for name, commit in refs.items() if fnmatchcase(name, pattern)]
            if not found:
                raise Refused(f"{repository.path}: no tag or branch matches {pattern!r}"
                              f"{_near(pattern, refs)}")  # fmt: skip
        else:
            found = [(pattern, _resolve(repository, pattern))]
        for name, commit in found:
            yield TreeRef(name, "revision", str(repository.path), commit)


def _resolve(repository: Repository, revision: str) -> str:
    try:
        return repository.resolve(revision)
    except Refused as error:
        raise Refused(f"{error}{_near(revision, _refs(repository))}") from None


def _near(pattern: str, refs: dict[str, str]) -> str:
    if not refs:
        return "; the repository has no tags and no branches"
    import difflib

    near = difflib.get_close_matches(pattern, refs, n=_SHOWN, cutoff=0.3) or list(refs)[:_SHOWN]
    return f"; of {len(refs)} names, near are: {', '.join(near)}"


def _refs(repository: Repository) -> dict[str, str]:
    """List tags, then branches, by their short names where these are unique; versions in order."""
    form = "%(refname)%00%(symref)%00%(objectname)%00%(*objectname)"
    done = repository.git(["for-each-ref", f"--format={form}", *(kind[:-1] for kind in _KINDS)])
    full: dict[str, str] = {}
    for line in os.fsdecode(done.stdout).splitlines():
        name, link, named, behind = line.split("\0")
        if not link:
            # A tag that stands for no commit is refused when it is opened.
            full[name] = behind or named
    short: dict[str, list[str]] = {}
    for name in full:
        short.setdefault(_short(name), []).append(name)
    order = sorted(full, key=lambda name: (_kind(name), *by_version(_short(name))))
    return {(name if len(short[_short(name)]) > 1 else _short(name)): full[name] for name in order}


def _kind(name: str) -> int:
    return next(place for place, kind in enumerate(_KINDS) if name.startswith(kind))


def _short(name: str) -> str:
    return name.removeprefix(_KINDS[_kind(name)])


def _range(
    repository: Repository,
    pattern: str,
    first_parent: bool,
    paths: Sequence[str],
) -> list[str]:
    ends = pattern.split("..")
    if len(ends) != 2 or not all(ends) or ends[1].startswith("."):
        raise UsageError(f"{pattern!r} is no range: give A..B, the commits of B that A lacks")
    since, until = (_resolve(repository, end) for end in ends)
    commits = repository.commits(since, until, first_parent=first_parent, paths=paths)
    if not commits:
        changing = " that change a file which the series reads" if paths else ""
        raise Refused(f"{repository.path}: {pattern} holds no commits{changing}")
    return commits


def files_read(repository: Repository, revisions: Iterable[str]) -> tuple[str, ...]:
    """List the files of the trees at some revisions that the series reads, there or not.

    Raises:
        Refused: none of the revisions can be evaluated.
    """
    from sgl_npu_patch.codemods import SERIES
    from sgl_npu_patch.engine.plan import make_plan
    from sgl_npu_patch.engine.store import Traced

    found: set[PurePosixPath] = set()
    last = ""
    for revision in revisions:
        try:
            tree = repository.open(revision)
            traced = Traced(tree, tree.package)
            make_plan(traced, SERIES)
            found.update(traced.blobs)
        except Refused as error:
            last = str(error)
    if not found:
        raise Refused(f"{last}; so it cannot be told which files --touching is about")
    return tuple(sorted(map(str, found)))


def _ends_of(patterns: Iterable[str]) -> list[str]:
    """List the revisions at which the ranges among some patterns begin and end."""
    ends = [end for pattern in patterns if ".." in pattern for end in pattern.split("..")]
    return list(dict.fromkeys(end for end in ends if end))
