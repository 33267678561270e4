"""Judge faulty trees by the checks of `verify`, each in a process forked from a warm one."""

from __future__ import annotations

import ast
import gc
import io
import os
import pickle
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.overlay import Cache, Overlay
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees.directory import DirectoryTree, open_directory
from sgl_npu_patch.simulator import sglang
from sgl_npu_patch.verify import off_npu, static
from sgl_npu_patch.verify.behaviour import Check, Subject, declared
from sgl_npu_patch.verify.behaviour.__main__ import verdict
from sgl_npu_patch.verify.results import Result
from sgl_npu_patch.verify.run import LAYERS, SIMULATED
from sgl_npu_patch.verify.static.judged import Judged, judge
from tests.helpers import ROOT
from tests.upstream.releases import copy_tree, release_tree

SECONDS = 120
"""After this long a check counts as hung; `verify` itself waits longer."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "server_args.py": ("handler",),
    "common.py": ("dispatch", "batch_invariant"),
    "ascend_backend.py": ("layers",),
    "batch_invariant_ops.py": ("batch_invariant", "npu_ops"),
    "sampler.py": ("sampler", "layers"),
    "npu_ops.py": ("batch_invariant", "npu_ops", "handler"),
    "launch_guards.py": ("handler",),
}
"""The groups of checks that execute a file; others say nothing about it."""

Files = Mapping[PurePosixPath, bytes]
LAST = 1e9
"""As long as a check is taken to last that is to be run behind all others."""

How = Literal["static", "compared", "behaviour"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Name a check that failed, and what it said."""

    id: str
    seam: str
    how: How
    message: str


@dataclass(slots=True)
class EditedTree:
    """Read a tree with some of its files replaced."""

    tree: DirectoryTree
    files: Files
    label: str = "edited"
    revision: str | None = None
    package: PurePosixPath = ROOT
    project: Project = PROJECT
    _found: dict[bytes, tuple[PurePosixPath, ...]] = field(default_factory=dict)

    def copies(self) -> tuple[PurePosixPath, ...]:
        """Give none; see `SourceTree.copies`."""
        return ()

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        if needle not in self._found:
            self._found[needle] = self.tree.containing(needle)
        found = {path for path in self._found[needle] if path not in self.files}
        found |= {path for path, data in self.files.items() if needle in data}
        if among is not None:
            found &= {*among}
        return tuple(sorted(found))

    def read(self, path: PurePosixPath) -> bytes | None:
        """Give a file's bytes; see `SourceTree.read`."""
        return self.files[path] if path in self.files else self.tree.read(path)


class Bench:
    """Hold one patched release, warmed up so that a fault in it is judged quickly."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.tree = copy_tree(version, folder / "tree")
        # What is executed by this path is cached; a fault's files are read by the other.
        self._clean = folder / "clean"
        self._clean.symlink_to(self.tree)
        self._base = release_tree(version) / "sglang"
        plan = make_plan(open_directory(self.tree, PROJECT), SERIES)
        self.changes = {c.path: (c.before or b"", c.after) for c in plan.changes.changes}
        for path, (_, after) in self.changes.items():
            target = self.tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(after)
        self.texts = {path: after.decode() for path, (_, after) in self.changes.items()}
        self._source = open_directory(self.tree, PROJECT)
        self._edited = EditedTree(self._source, {})
        self._judged = self._judge({})
        self._pristine = open_directory(release_tree(version), PROJECT)
        self._unpatched = judge(self._pristine)
        results = [*static.check(self._judged), *off_npu.check(self._judged, self._unpatched)]
        if failed := [result for result in results if result.verdict == "fail"]:
            raise AssertionError(f"{version}, without a fault: {failed}")
        torch.set_num_threads(1)
        self._checks: dict[str, list[tuple[float, Check]]] = {}
        self._kills: Counter[str] = Counter()

    def _warm(self, group: str) -> list[tuple[float, Check]]:
        """Give a group's checks with their seconds, once they have passed without a fault."""
        if group not in self._checks:
            checks = declared(group)
            if group == LAYERS:
                # It leaves the simulated device with other kernels than the other groups expect.
                failures = _in_child(lambda: self._passes(checks, {}))
                seconds = dict.fromkeys((check.id for check in checks), LAST)
            else:
                seconds = {}
                failures = list(self._passes(checks, seconds))
            if failures:
                raise AssertionError(f"{self.version}, without a fault: {failures}")
            self._checks[group] = [(seconds[check.id], check) for check in checks]
            # Collecting would touch, and so copy, all that the children share.
            gc.collect()
            gc.freeze()
        return self._checks[group]

    def _passes(self, checks: Iterable[Check], seconds: dict[str, float]) -> Iterator[Failure]:
        subject = self._subject(self._judged, self._clean / "sglang")
        for check in checks:
            began = time.monotonic()
            if failure := _failure(check, subject):
                yield failure
            seconds[check.id] = time.monotonic() - began

    def patched(self, before: Files) -> dict[PurePosixPath, bytes] | None:
        """Patch the release with other contents of some files; None if the series refuses."""
        plan = make_plan(EditedTree(self._pristine, before), SERIES)
        if plan.conflicts:
            return None
        return {**before, **{change.path: change.after for change in plan.changes.changes}}

    def differing(self, files: Files) -> dict[PurePosixPath, bytes]:
        """Choose the files that are not as in the release."""
        return {path: data for path, data in files.items() if data != self._pristine.read(path)}

    def siblings(self, on: str, name: str) -> list[str]:
        """Name what the tree has beside a module's name, or beside a name in a module."""
        del name
        if on in ("npu_ops", "launch_guards"):
            return _defined(self.texts[ROOT / PROJECT.vendor_folder / f"{on}.py"])
        if not on.startswith("import sglang"):
            return []
        place = self.tree.joinpath(*on.removeprefix("import ").split("."))
        if place.is_dir():
            return sorted(path.stem for path in place.iterdir() if not path.name.startswith("_"))
        module = place.with_suffix(".py")
        return _defined(module.read_text("utf-8")) if module.is_file() else []

    def judge(
        self,
        files: Files,
        *,
        groups: Sequence[str] | None = None,
        only: Iterable[str] = (),
        thorough: bool = False,
        sparing: bool = False,
        before: Files | None = None,
    ) -> list[Failure]:
        """Run the checks on the tree with other contents of some files.

        Args:
            groups: of checks to run, those that execute one of the files if None.
            only: the behaviour checks to run of them, all if empty.
            thorough: go on behind the first behaviour check that fails.
            sparing: execute the tree only if its text shows nothing.
            before: other contents of the unpatched tree's files too.
        """
        if groups is None:
            groups = [g for path in files for g in GROUPS.get(path.name, ())]
        chosen = {*only}
        checks = [
            (seconds, check)
            for group in dict.fromkeys(groups)
            for seconds, check in self._warm(group)
            if not chosen or check.id in chosen
        ]
        # What found a fault before probably finds the next.
        checks.sort(key=lambda timed: timed[0] / (1 + self._kills[timed[1].id]) ** 2)
        ordered = [check for _, check in checks]
        with self._written(files):
            found = _in_child(lambda: self._run(files, ordered, thorough, sparing, before))
        self._kills.update(failure.id for failure in found)
        return found

    def _run(
        self,
        files: Files,
        checks: Sequence[Check],
        thorough: bool,
        sparing: bool,
        before: Files | None,
    ) -> Iterator[Failure]:
        try:
            judged = self._judge(files)
        except Refused as refused:
            yield Failure("tree.readable", "", "static", str(refused))
            return
        unpatched = self._unpatched
        if before is not None:
            unpatched = judge(EditedTree(self._pristine, before))
        read: list[tuple[How, list[Result]]] = [("static", static.check(judged))]
        # Nothing in the unpatched tree is compared with a vendored module.
        if any(path.parent != ROOT / PROJECT.vendor_folder for path in files):
            read.append(("compared", off_npu.check(judged, unpatched)))
        seen = False
        for how, results in read:
            for result in results:
                if result.verdict == "fail":
                    seen = True
                    yield Failure(result.id, result.seam, how, result.message)
        if seen and sparing:
            return
        self._read_edited_files(files)
        subject = self._subject(judged, self.tree / "sglang")
        if before is not None:
            subject = replace(subject, base=self._laid_out(before))
        for check in checks:
            if failure := _failure(check, subject):
                yield failure
                if not thorough:
                    return

    def _judge(self, files: Files) -> Judged:
        known: Cache | None = None
        trees: dict[PurePosixPath, ast.Module] = {}
        tree = replace(self._edited, files=files)
        if files:
            known, trees = self._judged.overlay.cache, dict(self._judged._trees)
        overlay = Overlay(tree)
        if known is not None:
            overlay.cache = replace(
                known,
                mentions={},
                defining={k: v for k, v in known.defining.items() if k[0] not in files},
            )
        for path in files:
            trees.pop(path, None)
        return Judged(overlay, make_plan(overlay, SERIES), trees)

    def _subject(self, judged: Judged, package: Path) -> Subject:
        return Subject(
            package=package,
            base=self._base,
            left_out=judged.left_out,
            native=judged.native,
            torch_npu=SIMULATED,
        )

    def _read_edited_files(self, files: Files) -> None:
        """Take the code of every other file of the tree from the clean execution's cache."""
        parse = sglang._parse
        edited = {self.tree / path for path in files}

        def parse_edited(file: Path) -> Any:
            if file in edited or not file.is_relative_to(self.tree):
                return parse(file)
            return parse(self._clean / file.relative_to(self.tree))

        vars(sglang)["_parse"] = parse_edited

    def _laid_out(self, before: Files) -> Path:
        """Lay out an unpatched tree with other contents of some files, for one child."""
        base = Path(tempfile.mkdtemp(dir=self.tree.parent))
        shutil.copytree(self._base, base / "sglang", ignore=shutil.ignore_patterns("*.[!p]*"))
        for path, data in before.items():
            (base / path).write_bytes(data)
        return base / "sglang"

    @contextmanager
    def _written(self, files: Files) -> Iterator[None]:
        before = {path: self._source.read(path) for path in files}
        try:
            for path, data in files.items():
                (self.tree / path).write_bytes(data)
            yield
        finally:
            for path, old in before.items():
                if old is None:
                    (self.tree / path).unlink()
                else:
                    (self.tree / path).write_bytes(old)


def _defined(text: str) -> list[str]:
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


def _failure(check: Check, subject: Subject) -> Failure | None:
    told = verdict(check, subject)
    if told["verdict"] != "fail":
        return None
    return Failure(check.id, check.seam, "behaviour", told["message"])


def _in_child(run: Any) -> list[Failure]:
    """Run in a forked process, which may hang, crash or spoil what it executes in."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads; torch was told to have none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.close(reading)
            # What a tree prints is nobody's answer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            with os.fdopen(writing, "wb") as answers:
                for failure in run():
                    pickle.dump(failure, answers)
                    answers.flush()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    os.close(writing)
    found, hung = _collect(reading)
    if hung:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 70:
        raise RuntimeError("judging failed, see above")
    if hung or code:
        said = f"hung for {SECONDS} s" if hung else f"the process ended with {code}"
        found.append(Failure("tree.runs", "", "behaviour", said))
    return found


def _collect(reading: int) -> tuple[list[Failure], bool]:
    data, hung = b"", False
    with os.fdopen(reading, "rb", buffering=0) as answers:
        while True:
            ready, _, _ = select.select([answers], [], [], SECONDS)
            if not ready:
                hung = True
                break
            part = answers.read(1 << 16)
            if not part:
                break
            data += part
    return list(_unpickled(data)), hung


def _unpickled(data: bytes) -> Iterator[Failure]:
    stream = io.BytesIO(data)
    while True:
        try:
            yield pickle.load(stream)
        except EOFError:
            return
