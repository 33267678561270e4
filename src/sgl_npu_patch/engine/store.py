"""Store what was found out about trees, between runs and by content.

An answer is kept under what it was made from: the questions that were asked of the tree and the
answers that it gave, by blob id. A tree that gives the same answers gets the same result, whatever
else differs in it; the tool itself is one of the things that the answer was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.revision import GitTree

_LIMIT = 64 << 20
_TRIED = 16
"""How many sets of questions to put to a tree; those of neighbouring releases differ in a file."""
_UNFINISHED = 3600
"""Seconds after which a file that was not finished belongs to a run that was killed."""


class NotLasting(Exception):
    """Return an answer that must not be stored."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


@dataclass(slots=True)
class Traced:
    """Pass questions on to a tree and note them; what names the tree is hidden from the asker."""

    tree: SourceTree
    package: PurePosixPath
    label: str = "this tree"
    revision: str | None = None
    needles: dict[bytes, tuple[PurePosixPath, ...]] = field(default_factory=dict)
    blobs: dict[PurePosixPath, str | None] = field(default_factory=dict)

    @property
    def project(self) -> Project:
        """Return what is known of the package."""
        return self.tree.project

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package; see `SourceTree.copies`."""
        return self.tree.copies()

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        if needle not in self.needles:
            # Not only among those: which files mention a name changes less often than the files.
            self.needles[needle] = self.tree.containing(needle)
        if among is None:
            return self.needles[needle]
        return tuple(sorted({*among}.intersection(self.needles[needle])))

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        self.blob(path)
        return self.tree.read(path)

    def blob(self, path: PurePosixPath) -> str | None:
        """Return a digest or id of a file's content, None if there is no such file."""
        if path not in self.blobs:
            self.blobs[path] = _blob(self.tree, path)
        return self.blobs[path]


@dataclass(slots=True)
class Store:
    """Keep answers in files of a folder; any number of processes may use it at once.

    A file is written aside and renamed, and carries its own digest: one that is cut short or
    damaged counts as missing. Failures to write are no failures: the answer is only not kept.
    """

    folder: Path
    limit: int = _LIMIT

    def get(self, key: str) -> bytes | None:
        """Return what is kept under a key, None if there is nothing."""
        path = self._path(key)
        with suppress(OSError):
            digest, _, data = path.read_bytes().partition(b"\n")
            if digest == _digest(data).encode():
                return data
        return None

    def keep(self, key: str) -> None:
        """Mark an answer as used: `trim` removes what was not used for longest."""
        with suppress(OSError):
            os.utime(self._path(key))

    def put(self, key: str, data: bytes) -> None:
        """Keep an answer."""
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, scratch = tempfile.mkstemp(prefix=".", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_digest(data).encode() + b"\n" + data)
                Path(scratch).replace(path)
            finally:
                Path(scratch).unlink(missing_ok=True)

    def below(self, key: str) -> Iterator[str]:
        """Yield the keys that begin with a key and a slash, the latest used first."""
        found: list[tuple[float, str]] = []
        with suppress(OSError), os.scandir(self._path(key)) as entries:
            found = [(-entry.stat().st_mtime, entry.name) for entry in entries]
        for _, name in sorted(found):
            if not name.startswith("."):
                yield f"{key}/{name}"

    def trim(self) -> None:
        """Remove what was not used for longest, if all together is too large."""
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.rglob("*"):
            with suppress(OSError):
                status = path.stat()
                if path.name.startswith(".") and status.st_mtime < time.time() - _UNFINISHED:
                    path.unlink()
                elif path.is_file():
                    files.append((status.st_mtime, status.st_size, path))
        size = sum(each for _, each, _ in files)
        for _, each, path in sorted(files):
            if size <= self.limit:
                break
            size -= each
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


@dataclass(frozen=True, slots=True)
class Questions:
    """List what was asked of a tree: names to search for, and files to compare."""

    needles: tuple[str, ...]
    blobs: tuple[PurePosixPath, ...]

    @classmethod
    def of(cls, traced: Traced) -> Questions:
        """Collect what was asked through a tree that noted it."""
        needles = (needle.decode() for needle in sorted(traced.needles))
        return cls(tuple(needles), tuple(sorted(traced.blobs)))

    @classmethod
    def read(cls, data: bytes | None) -> Questions:
        """Decode what the store keeps; no questions if it keeps nothing."""
        asked = json.loads(data) if data is not None else {"needles": [], "blobs": []}
        return cls(tuple(asked["needles"]), tuple(map(PurePosixPath, asked["blobs"])))

    def encode(self) -> bytes:
        """Encode them for the store."""
        return json.dumps({"needles": self.needles, "blobs": [*map(str, self.blobs)]}).encode()


class Answer(NamedTuple):
    """Pair an answer with what was asked of the tree to find it, None for all that is in it."""

    data: bytes
    asked: Questions | None


@dataclass(slots=True)
class Memory:
    """Answer one question about trees from a store as far as it can.

    ``question`` stands for all that the answer depends on beside the tree and this tool's own code,
    such as the chosen seams; ``made_of`` names the parts of that code. With ``whole`` the answer
    may depend on any file, so that only the very same package of a revision has it. What was asked
    of the tree before is tried first: of many revisions, most give the same answers.
    """

    store: Store
    question: str
    made_of: tuple[str, ...]
    whole: bool = False
    _asked: dict[str, dict[str, Questions]] = field(default_factory=dict)
    _last: dict[str, bytes] = field(default_factory=dict)

    def answer(self, tree: SourceTree, compute: Callable[[SourceTree], bytes]) -> Answer:
        """Return what ``compute`` returns for the tree, from the store if that has it.

        Raises:
            Refused: ``compute`` does, which is not stored.
        """
        known = self.known(tree)
        if known is None:
            base = self._base(tree)
            kept, known = self._find_out(base, tree, compute)
            if isinstance(tree, GitTree):
                self.store.put(_whole(base, tree), kept.encode())
        return known

    def _find_out(
        self, base: str, tree: SourceTree, compute: Callable[[SourceTree], bytes]
    ) -> tuple[str, Answer]:
        """Return an answer, and the keys of it and of its questions."""
        if self.whole:
            assert isinstance(tree, GitTree)
            answers, known = _digest(f"{_whole(base, tree)} answers".encode()), compute(tree)
            self.store.put(answers, known)
            return answers, Answer(known, None)
        before = self._asked_before(base, tree)
        if before:
            return before
        traced = Traced(tree, tree.package)
        known = compute(traced)
        return self._keep(base, traced, known)

    def known(self, tree: SourceTree) -> Answer | None:
        """Return the answer if the very same package was asked about; no file of it is read."""
        if not isinstance(tree, GitTree):
            return None
        whole = _whole(self._base(tree), tree)
        kept = self.store.get(whole)
        answers, *asked = kept.decode("ascii").split() if kept else [""]
        known = self._get(answers) if answers else None
        if known is None:
            return None
        self.store.keep(whole)
        self.store.keep(answers)
        questions = self.store.get(asked[0]) if asked else None
        return Answer(known, Questions.read(questions) if questions is not None else None)

    def _base(self, tree: SourceTree) -> str:
        folders = [str(path) for path in (tree.package, *tree.copies())]
        return _digest(json.dumps([fingerprint(self.made_of), self.question, folders]).encode())

    def _get(self, answers: str) -> bytes | None:
        if answers not in self._last:
            known = self.store.get(answers)
            if known is None:
                return None
            self._last = {answers: known}
        return self._last[answers]

    def _asked_before(self, base: str, tree: SourceTree) -> tuple[str, Answer] | None:
        asked = self._asked.setdefault(base, {})
        for key in chain([*asked], islice(self.store.below(base), _TRIED)):
            questions = asked.pop(key, None)
            if questions is None:
                questions = Questions.read(self.store.get(key))
            with suppress(Refused):
                needles = {needle: _names(tree, needle.encode()) for needle in questions.needles}
                blobs = {str(path): _blob(tree, path) for path in questions.blobs}
                answers = _answers(base, needles, blobs)
                known = self._get(answers)
                if known is not None:
                    self._asked[base] = {key: questions}
                    self.store.keep(key)
                    return f"{answers} {key}", Answer(known, questions)
        return None

    def _keep(self, base: str, traced: Traced, data: bytes) -> tuple[str, Answer]:
        questions = Questions.of(traced)
        needles = {
            needle: [str(path) for path in traced.needles[needle.encode()]]
            for needle in questions.needles
        }
        blobs = {str(path): traced.blobs[path] for path in questions.blobs}
        answers = _answers(base, needles, blobs)
        self.store.put(answers, data)
        asked = questions.encode()
        key = f"{base}/{_digest(asked)}"
        self.store.put(key, asked)
        self._last = {answers: data}
        return f"{answers} {key}", Answer(data, questions)


def user_folder() -> Path:
    """Return the folder for what this tool keeps between runs."""
    chosen = os.environ.get("SGL_NPU_PATCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base, "sgl-npu-patch")


@cache
def fingerprint(made_of: tuple[str, ...]) -> str:
    """Return a digest of the parts of this tool that an answer depends on."""
    digest = hashlib.sha256()
    parts = [f"{sys.version_info[:2]} {_installed('libcst')}".encode()]
    for name in made_of:
        folder = _folder(f"sgl_npu_patch.{name}")
        for file in _files(folder):
            parts += [f"{name}/{file.relative_to(folder)}".encode(), file.read_bytes()]
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest()


def _installed(name: str) -> str:
    """Name a distribution and its version; to ask for it takes longer than to look."""
    found = [*_folder(name).parent.glob(f"{name}-*.dist-info")]
    if len(found) == 1:
        return found[0].name
    from importlib import metadata

    return metadata.version(name)


def _folder(name: str) -> Path:
    """Find a package without importing it, which would take longer than the rest."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in {".py", ".tmpl", ".json"})


def _whole(base: str, tree: GitTree) -> str:
    return _digest(f"{base}{tree.package_id()}".encode())


def _names(tree: SourceTree, needle: bytes) -> list[str]:
    if isinstance(tree, GitTree):
        return tree.names_containing(needle)
    return [str(path) for path in tree.containing(needle)]


def _blob(tree: SourceTree, path: PurePosixPath) -> str | None:
    if isinstance(tree, GitTree):
        return tree.blob(path)
    data = tree.read(path)
    return None if data is None else _digest(data)


def _answers(base: str, needles: Mapping[str, list[str]], blobs: Mapping[str, str | None]) -> str:
    return _digest(f"{base}{json.dumps([needles, blobs])}".encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
