"""Evaluate one tree after the other: each gets the document that `status` prints, or the reason
why there is none."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, NamedTuple

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
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
from sgl_npu_patch.engine.trees.revision import GitTree
from sgl_npu_patch.engine.trees.version import has_own_tags, stated_version
from sgl_npu_patch.matrix.content import ContentEvaluator, Options
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.trees import TreeRef
from sgl_npu_patch.reports.codec import NOT_JUDGED, header

_SWITCH = 0.0005
"""Seconds after which a thread that loads modules lets another one go on."""
ANSWERS, _RELEASES = "answers", "releases"
BUG = "this is a bug of sgl-npu-patch; please report it with what it printed"
MADE_OF = ("codemods", "engine", "npu_ops", "reports", "templates")
"""The parts of this tool that a remembered answer depends on."""
_CHECKED_BY = (*MADE_OF, "verify", "simulator")


class Evaluation(NamedTuple):
    """What was found out about one tree.

    Attributes:
        document: what reports print.
        package: where the package is; None for a tree that could not be opened.
        asked: what was asked of the tree; None for all that is in it.
        kept: it was kept by an earlier run.
        version_of_tag: the version is that of the nearest tag, which is still to be found.
    """

    document: dict[str, Any]
    package: PurePosixPath | None = None
    asked: Questions | None = None
    kept: bool = False
    version_of_tag: bool = False

    def for_revision(self, ref: TreeRef) -> Evaluation:
        """Return the evaluation of another revision that gives the same answers."""
        tree = self.document["tree"] | {"revision": ref.revision}
        return self._replace(document=self.document | {"name": ref.name, "tree": tree})


class Evaluator:
    """Evaluate any number of trees with the same options."""

    def __init__(self, options: Options, repositories: Repositories) -> None:
        self.options = options
        self.repositories = repositories
        self._content = ContentEvaluator(options)
        self._memories: dict[str, Memory] = {}

    def evaluate(self, ref: TreeRef) -> Evaluation:
        """Evaluate one tree."""
        try:
            with self._opened(ref) as tree:
                memory = self._memory(tree)
                answer = memory.known(tree) if memory else None
                return _evaluation(ref, tree, answer or self._answer(tree, memory))
        except Refused as error:
            return Evaluation(failed(ref, str(error)))

    def prepare(self, refs: Sequence[TreeRef]) -> None:
        """Look up the revisions among some trees at once, before each is looked at."""
        places: dict[str, list[str]] = {}
        for ref in refs:
            if ref.kind == "revision":
                places.setdefault(ref.place, []).append(ref.revision)
        for place, commits in places.items():
            # What cannot be read is refused when it is looked at.
            with suppress(Refused):
                self.repositories[place].prepare(commits)

    def kept(self, ref: TreeRef) -> tuple[Evaluation | None, str]:
        """Look up what an earlier run found out about a revision, or why it cannot be opened.

        Returns:
            That, if there is any, and else what stands for all that is in the package.
        """
        if ref.kind != "revision":
            return None, ""
        try:
            with self._opened(ref) as tree:
                assert isinstance(tree, GitTree)
                memory = self._memory(tree)
                answer = memory.known(tree) if memory else None
                if answer is not None:
                    return _evaluation(ref, tree, answer)._replace(kept=True), ""
                return None, f"{tree.package} {tree.package_id()} {tree.copies()}"
        except Refused as error:
            return Evaluation(failed(ref, str(error))), ""

    def _answer(self, tree: SourceTree, memory: Memory | None) -> Answer:
        if isinstance(tree, GitTree):
            tree.read_ahead()

        def compute(seen: SourceTree) -> bytes:
            return self._content.evaluate(seen, tree)

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

    @contextmanager
    def _opened(self, ref: TreeRef) -> Iterator[SourceTree]:
        if ref.kind == "revision":
            yield self.repositories[ref.place].open(ref.revision)
        elif ref.kind == "release":
            from packaging.version import Version

            from sgl_npu_patch.fetch import cached_release

            with self._releases() as releases:
                folder = cached_release(ref.place, Version(ref.revision), releases)
                tree = open_directory(folder, PROJECT)
                # Where it is kept says nothing about it.
                tree.label = f"{ref.place}=={ref.revision}"
                yield tree
        else:
            with open_tree(Path(ref.place), PROJECT) as other:
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


def _evaluation(ref: TreeRef, tree: SourceTree, answer: Answer) -> Evaluation:
    version = stated_version(tree)
    document = (
        {"name": ref.name}
        | header()
        | {"tree": {"path": tree.label, "version": version, "revision": tree.revision}}
        | NOT_JUDGED
        | {"copies": [path.as_posix() for path in tree.copies()]}
        | json.loads(answer.data)
    )
    tagged = version is None and isinstance(tree, GitTree) and has_own_tags(tree)
    return Evaluation(document, tree.package, answer.asked, version_of_tag=tagged)


def failed(ref: TreeRef, message: str) -> dict[str, Any]:
    """Return the document of a tree that could not be evaluated."""
    revision = ref.revision if ref.kind == "revision" else None
    path = f"{ref.place}=={ref.revision}" if ref.kind == "release" else ref.place
    return (
        {"name": ref.name}
        | header()
        | {"tree": {"path": path, "version": None, "revision": revision}}
        | NOT_JUDGED
        | {"copies": [], "error": {"message": message}}
    )


def load_ahead() -> None:
    """Load the series while git reads: neither waits for the other."""
    Thread(target=_load).start()


def _load() -> None:
    usual = sys.getswitchinterval()
    # What git has read is to be taken from it at once, so that it goes on.
    sys.setswitchinterval(_SWITCH)
    try:
        _ = import_module("sgl_npu_patch.codemods").SERIES
    finally:
        sys.setswitchinterval(usual)


def _torch() -> str:
    """Return the version of what executes a tree; empty where there is none."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return metadata.version("torch")
    return ""
