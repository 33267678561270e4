"""Judge one tree after the other: give each the document that `status` prints, or why not."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, Literal, NamedTuple

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused, TooOld, Unparsable
from sgl_npu_patch.engine.store import (
    Answer,
    Memory,
    NotLasting,
    Questions,
    Store,
    Traced,
    user_folder,
)
from sgl_npu_patch.engine.trees.directory import SourceTree, open_directory
from sgl_npu_patch.engine.trees.open import open_tree, prefix_of
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.engine.trees.revision import GitTree
from sgl_npu_patch.engine.trees.version import stated_version
from sgl_npu_patch.matrix.selection import Wanted
from sgl_npu_patch.reports.codec import NOT_JUDGED, header

Checks = Literal["", "static", "verify"]
_SWITCH = 0.0005
"""Seconds after which a thread that loads modules lets another one go on."""
ANSWERS, _RELEASES = "answers", "releases"
BUG = "this is a bug of sgl-npu-patch; please report it with what it printed"
MADE_OF = ("codemods", "engine", "npu_ops", "templates")
"""The parts of this tool that a status depends on."""
_CHECKED_BY = (*MADE_OF, "verify", "simulator")


@dataclass(frozen=True, slots=True)
class Options:
    """Say what to find out about each tree, and whether to remember it."""

    checks: Checks = ""
    diff: bool = False
    cache: bool = True


class Judged(NamedTuple):
    """Hold a tree's document, where its package is, and what was asked of it.

    ``package`` is None for a tree that could not be opened, ``asked`` for all that is in it;
    ``kept`` says that the document was there from another run.
    """

    document: dict[str, Any]
    package: PurePosixPath | None = None
    asked: Questions | None = None
    kept: bool = False


@dataclass(slots=True)
class Judge:
    """Judge any number of trees; each repository is opened once, and closed at the end."""

    options: Options
    _open: ExitStack = field(default_factory=ExitStack)
    _repositories: dict[str, Repository] = field(default_factory=dict)
    _memories: dict[str, Memory] = field(default_factory=dict)
    _derived: list[Any] = field(default_factory=list)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *ending: object) -> None:
        self._open.close()

    def document(self, wanted: Wanted) -> dict[str, Any]:
        """Give the document of one tree."""
        return self.judge(wanted).document

    def judge(self, wanted: Wanted) -> Judged:
        """Find out about one tree."""
        try:
            with self._opened(wanted) as tree:
                memory = self._memory(tree)
                answer = memory.known(tree) if memory else None
                return self._finish(wanted, tree, answer or self._find_out(tree, memory))
        except Refused as error:
            return Judged(failed(wanted, str(error)))

    def _find_out(self, tree: SourceTree, memory: Memory | None) -> Answer:
        if isinstance(tree, GitTree):
            tree.read_ahead()
        compute = self._compute(tree)
        try:
            if memory:
                return memory.answer(tree, compute)
            traced = Traced(tree, tree.package)
            data = compute(traced)
        except NotLasting as found:
            return Answer(found.data, None)
        # What executes a tree may look at any file of it.
        whole = self.options.checks == "verify"
        return Answer(data, None if whole else Questions.of(traced))

    def prepare(self, wanted: Sequence[Wanted]) -> None:
        """Look the revisions among some trees up at once, before each is looked at."""
        places: dict[str, list[str]] = {}
        for each in wanted:
            if each.kind == "revision":
                places.setdefault(each.place, []).append(each.revision)
        for place, commits in places.items():
            # What cannot be read is refused when it is looked at.
            with suppress(Refused):
                self.repository(place).prepare(commits)

    def known(self, wanted: Wanted) -> tuple[Judged | None, str]:
        """Tell of a revision what can be told without reading a file that the series reads.

        Returns what is known, if anything is, and else what stands for all that is in its package.
        """
        if wanted.kind != "revision":
            return None, ""
        try:
            with self._opened(wanted) as tree:
                assert isinstance(tree, GitTree)
                memory = self._memory(tree)
                answer = memory.known(tree) if memory else None
                if answer is not None:
                    return self._finish(wanted, tree, answer)._replace(kept=True), ""
                return None, f"{tree.package} {tree.package_id()} {tree.copies()}"
        except Refused as error:
            return Judged(failed(wanted, str(error))), ""

    def alike(self, wanted: Wanted, other: Judged) -> Judged:
        """Give for a revision what was found out about another that has the same answers."""
        tree = other.document["tree"] | {"revision": wanted.revision}
        return other._replace(document=other.document | {"name": wanted.name, "tree": tree})

    def repository(self, place: str) -> Repository:
        """Open a repository, once."""
        if place not in self._repositories:
            opened = self._open.enter_context(open_repository(Path(place), PROJECT))
            self._repositories[place] = opened
        return self._repositories[place]

    @contextmanager
    def _opened(self, wanted: Wanted) -> Iterator[SourceTree]:
        if wanted.kind == "revision":
            yield self.repository(wanted.place).open(wanted.revision)
        elif wanted.kind == "release":
            from packaging.version import Version

            from sgl_npu_patch.fetch import cached_release

            with self._releases() as releases:
                folder = cached_release(wanted.place, Version(wanted.revision), releases)
                tree = open_directory(folder, PROJECT)
                # Where it is kept says nothing about it.
                tree.label = f"{wanted.place}=={wanted.revision}"
                yield tree
        else:
            with open_tree(Path(wanted.place), PROJECT) as other:
                yield other

    @contextmanager
    def _releases(self) -> Iterator[Path]:
        if self.options.cache:
            yield user_folder() / _RELEASES
        else:
            with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as scratch:
                yield Path(scratch)

    def _memory(self, tree: SourceTree) -> Memory | None:
        # What executes a tree may look at any file of it, and only git can name all at once.
        whole = self.options.checks == "verify"
        if not self.options.cache or (whole and not isinstance(tree, GitTree)):
            return None
        prefix = str(prefix_of(tree)) if self.options.diff else ""
        executed_by = _torch() if whole else ""
        question = json.dumps([self.options.checks, self.options.diff, prefix, executed_by])
        if question not in self._memories:
            made_of = _CHECKED_BY if self.options.checks else MADE_OF
            store = Store(user_folder() / ANSWERS)
            self._memories[question] = Memory(store, question, made_of, whole=whole)
        return self._memories[question]

    def _compute(self, tree: SourceTree) -> Compute:
        return Compute(self.options, tree, self._derived)

    def _finish(self, wanted: Wanted, tree: SourceTree, answer: Answer) -> Judged:
        found: dict[str, Any] = json.loads(answer.data)
        document = (
            {"name": wanted.name}
            | header()
            | {"tree": _about(tree)}
            | NOT_JUDGED
            | {"copies": [path.as_posix() for path in tree.copies()]}
            | found
        )
        return Judged(document, tree.package, answer.asked)


@dataclass(frozen=True, slots=True)
class Compute:
    """Find out what depends on a tree's content alone; the tree as opened tells where it stands."""

    options: Options
    opened: SourceTree
    derived: list[Any]

    def __call__(self, tree: SourceTree) -> bytes:
        """Give it as JSON.

        Raises:
            NotLasting: it may be another the next time.
            Refused: the tree cannot be read.
        """
        try:
            found, lasting = self._found(tree)
        except (TooOld, Unparsable) as error:
            reason = error.reason if isinstance(error, TooOld) else str(error)
            found, lasting = {"error": {"message": reason}}, True
        data = json.dumps(found).encode()
        if not lasting:
            raise NotLasting(data)
        return data

    def _found(self, tree: SourceTree) -> tuple[dict[str, Any], bool]:
        from sgl_npu_patch.codemods import SERIES
        from sgl_npu_patch.engine.overlay import Cache, Overlay
        from sgl_npu_patch.engine.plan import make_plan
        from sgl_npu_patch.reports.codec import plan_document

        self.derived[:] = [self.derived[0].for_another_tree() if self.derived else Cache()]
        plan = make_plan(Overlay(tree, self.derived[0]), SERIES)
        found = plan_document(plan)
        if self.options.diff:
            from sgl_npu_patch.reports.diff import render_diff

            diff = render_diff(plan.changes, prefix_of(self.opened))
            found["diff"] = diff.decode("utf-8", "replace")
        if not self.options.checks:
            return found, True
        found["checks"] = []
        if plan.conflicts:
            return found, True
        from sgl_npu_patch.matrix.patched import patched
        from sgl_npu_patch.reports.codec import check_documents
        from sgl_npu_patch.verify.run import verify

        static_only = self.options.checks == "static"
        after = patched(tree, plan.changes)
        verified = verify(after, static_only=static_only)
        found["checks"] = check_documents(verified.results)
        return found, verified.lasting


def _about(tree: SourceTree) -> dict[str, Any]:
    return {"path": tree.label, "version": stated_version(tree), "revision": tree.revision}


def _torch() -> str:
    """Give the version of what executes a tree; if there is none, nothing is executed."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return metadata.version("torch")
    return ""


def load_ahead() -> None:
    """Load what judges while git reads: neither waits for the other."""
    Thread(target=_load).start()


def _load() -> None:
    usual = sys.getswitchinterval()
    # What git has read is to be taken from it at once, so that it goes on.
    sys.setswitchinterval(_SWITCH)
    try:
        import_module("sgl_npu_patch.codemods")
    finally:
        sys.setswitchinterval(usual)


def failed(wanted: Wanted, message: str) -> dict[str, Any]:
    """Give the document of a tree that could not be judged."""
    revision = wanted.revision if wanted.kind == "revision" else None
    path = f"{wanted.place}=={wanted.revision}" if wanted.kind == "release" else wanted.place
    tree = {"path": path, "version": None, "revision": revision}
    return (
        {"name": wanted.name}
        | header()
        | {"tree": tree}
        | NOT_JUDGED
        | {"copies": [], "error": {"message": message}}
    )
