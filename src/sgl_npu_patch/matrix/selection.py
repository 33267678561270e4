"""Find the trees that a run asks for, by name, in the order asked, each once."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.git_tree import Repository
from sgl_npu_patch.fetch import DISTRIBUTION, list_versions

_GLOB = re.compile(r"[*?\[]")
_KINDS = ("refs/tags/", "refs/heads/", "refs/remotes/")
_SHOWN = 5
_DIGITS = 12
"""How many digits of an id name a commit of a range."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Name one tree: a revision of the repository ``place``, a release, or the folder ``place``."""

    name: str
    kind: Literal["revision", "release", "folder"]
    place: str
    revision: str = ""


def once(wanted: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """Leave out what was asked for before."""
    return tuple(dict.fromkeys(wanted))


def select_folders(folders: Iterable[str]) -> Iterator[Wanted]:
    """Take folders and archives as they are named."""
    for folder in folders:
        if not folder:
            raise UsageError("DIR is empty; give a folder, or . for the current one")
        yield Wanted(folder, "folder", folder)


def select_releases(specifiers: Iterable[str]) -> Iterator[Wanted]:
    """Find the published releases that fit specifiers of PEP 440, oldest first.

    A fork's name may stand before its specifier. Pre-releases count where the specifier names one.

    Raises:
        Refused: pip lists none that fits.
        UsageError: a specifier is none.
    """
    for given in specifiers:
        name, specifier = _parse(given)
        pins = [each.version for each in specifier if each.operator == "=="]
        if len(pins) == len(specifier) == 1 and not pins[0].endswith(".*"):
            versions = [Version(pins[0])]
        else:
            published = list_versions(name)
            early = bool(specifier.prereleases)
            versions = [v for v in published if specifier.contains(v, prereleases=early)]
            if not versions:
                near = ", ".join(map(str, published[-_SHOWN:]))
                raise Refused(f"no release of {name} fits {given!r}; the newest are {near}")
        for version in versions:
            shown = str(version) if name == DISTRIBUTION else f"{name}=={version}"
            yield Wanted(shown, "release", name, str(version))


def _parse(given: str) -> tuple[str, SpecifierSet]:
    try:
        return DISTRIBUTION, SpecifierSet(f"=={Version(given)}")
    except InvalidVersion:
        pass
    try:
        # An empty one would stand for all releases, and is an unset variable rather.
        if given.strip():
            return DISTRIBUTION, SpecifierSet(given)
    except InvalidSpecifier:
        pass
    try:
        requirement = Requirement(given)
    except InvalidRequirement:
        raise UsageError(
            f"{given!r} names no releases; give a specifier such as '>=0.5.3rc2,<0.5.13', or one "
            "behind a fork's name"
        ) from None
    if requirement.extras or requirement.url or requirement.marker or not requirement.specifier:
        raise UsageError(f"{given!r} must be a fork's name and a specifier, and nothing else")
    return requirement.name, requirement.specifier


def select_revisions(
    repository: Repository, patterns: Iterable[str], *, first_parent: bool, paths: Sequence[str]
) -> Iterator[Wanted]:
    """Find the revisions that globs over tags and branches, names and ranges stand for.

    Args:
        first_parent: follow a range along the first parents only.
        paths: take only those commits of a range that change one of these files; all if empty.

    Raises:
        Refused: nothing has such a name.
    """
    refs = _refs(repository)
    for pattern in patterns:
        if ".." in pattern:
            found = _range(repository, pattern, refs, first_parent, paths)
        elif _GLOB.search(pattern):
            found = [(name, commit) for name, commit in refs.items() if fnmatchcase(name, pattern)]
            if not found:
                raise Refused(f"{repository.path}: no tag or branch matches {pattern!r}"
                              f"{_near(pattern, refs)}")  # fmt: skip
        else:
            found = [(pattern, _resolve(repository, pattern, refs))]
        for name, commit in found:
            yield Wanted(name, "revision", str(repository.path), commit)


def _resolve(repository: Repository, revision: str, refs: dict[str, str]) -> str:
    try:
        return repository.resolve(revision)
    except Refused as error:
        raise Refused(f"{error}{_near(revision, refs)}") from None


def _near(pattern: str, refs: dict[str, str]) -> str:
    if not refs:
        return "; the repository has no tags and no branches"
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


def by_version(name: str) -> tuple[int, Version, str]:
    """Give what to sort names by: those that are a version in its order, then the others."""
    try:
        return 0, Version(name.rpartition("/")[2].rpartition("==")[2]), name
    except InvalidVersion:
        return 1, Version("0"), name


def _range(
    repository: Repository,
    pattern: str,
    refs: dict[str, str],
    first_parent: bool,
    paths: Sequence[str],
) -> list[tuple[str, str]]:
    ends = pattern.split("..")
    if len(ends) != 2 or not all(ends) or ends[1].startswith("."):
        raise UsageError(f"{pattern!r} is no range: give A..B, the commits of B that A lacks")
    since, until = (_resolve(repository, end, refs) for end in ends)
    commits = repository.commits(since, until, first_parent=first_parent, paths=paths)
    if not commits:
        changing = " that change a file which the series reads" if paths else ""
        raise Refused(f"{repository.path}: {pattern} holds no commits{changing}")
    return [(commit[:_DIGITS], commit) for commit in commits]


def files_read(repository: Repository, revisions: Iterable[str]) -> tuple[str, ...]:
    """List the files of the trees at some revisions that the series reads, there or not.

    Raises:
        Refused: none of the revisions can be judged.
    """
    from sgl_npu_patch.codemods import DETERMINISTIC
    from sgl_npu_patch.engine.cache import Traced
    from sgl_npu_patch.engine.plan import make_plan

    found: set[PurePosixPath] = set()
    last = ""
    for revision in revisions:
        try:
            tree = repository.open(revision)
            traced = Traced(tree, tree.package)
            make_plan(traced, DETERMINISTIC)
            found.update(traced.blobs)
        except Refused as error:
            last = str(error)
    if not found:
        raise Refused(f"{last}; so it cannot be told which files --touching is about")
    return tuple(sorted(map(str, found)))


def ends_of(patterns: Iterable[str]) -> list[str]:
    """List the revisions at which the ranges among some patterns begin and end."""
    ends = [end for pattern in patterns if ".." in pattern for end in pattern.split("..")]
    return list(dict.fromkeys(end for end in ends if end))
