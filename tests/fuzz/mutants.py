"""Mutate the files of a release that the series reads, and judge what becomes of them."""

from __future__ import annotations

import io
import signal
import tokenize
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from random import Random

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.plan import make_plan, prove
from sgl_npu_patch.engine.text.source import read_source
from tests.helpers import MemoryTree
from tests.refactor.project import FUNCTIONS, base, places

Files = Mapping[PurePosixPath, bytes]

SECONDS = 20
"""After this long a run counts as hung."""

_EDITED = {
    name
    for symbol in (
        symbols.PREPARE_FOR_DECODE,
        symbols.FROM_BATCH,
        symbols.FORWARD_COPY,
        symbols.DRAW_FILTERED,
        symbols.DRAW_UNFILTERED,
    )
    for name in symbol.names
}
"""What is edited beside the definitions that are refactored."""
_KEPT = {*FUNCTIONS, *_EDITED, "is_npu", "is_cuda_alike", "is_xpu", "forward", "__init__"}


@dataclass(frozen=True)
class Verdict:
    """Say what became of a mutant; ``problem`` is empty unless something is wrong.

    ``fair`` marks a mutant that compiles and has every anchored definition as it was.
    """

    accepted: bool
    fair: bool
    problem: str
    reason: str


@cache
def seam_files(version: str) -> dict[PurePosixPath, bytes]:
    """Give the files that the series edits, without most functions that it has no business in."""
    found = {}
    paths = {*anchored(version)}
    for path, data in base(version).items():
        if path in paths or "utils" in path.parts or path.name in ("utils.py", "__init__.py"):
            found[path] = _trimmed(path, data)
    return found


def _trimmed(path: PurePosixPath, data: bytes) -> bytes:
    source = read_source(path, data)
    text = source.text
    for number, block in enumerate(reversed(source.blocks)):
        nested = any(
            outer.kind == "function" and outer.start <= block.start and block.end <= outer.end
            for outer in source.blocks
            if outer is not block
        )
        if block.kind == "function" and block.name not in _KEPT and not nested and number % 12:
            indent = source.cut(block)[: -len(source.cut(block).lstrip(" "))]
            text = f"{text[: block.start]}{indent}pass\n{text[block.end :]}"
    return text.encode()


@cache
def anchored(version: str) -> dict[PurePosixPath, tuple[str, ...]]:
    """Give the texts of the anchored definitions, by file."""
    found: dict[PurePosixPath, tuple[str, ...]] = {}
    for place in places(version).values():
        found[place.path] = (*found.get(place.path, ()), place.text)
    files = {f"sglang/{form.file}" for each in symbols.SYMBOLS.values() for form in each.forms}
    for path, data in base(version).items():
        if str(path) in files and any(name.encode() in data for name in _EDITED):
            source = read_source(path, data)
            texts = [
                source.cut(b) for name in sorted(_EDITED) for b in source.named(name, "function")
            ]
            found[path] = (*found.get(path, ()), *texts)
    return found


@cache
def _tokens(text: str) -> tuple[tuple[int, int], ...]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return tuple(
        (starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1])
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.string
    )


def mutate(rng: Random, text: str) -> bytes:
    """Delete, duplicate or swap tokens or lines, truncate, or put in random bytes."""
    tokens = _tokens(text)
    kind = rng.choice(
        ("delete", "delete", "duplicate", "swap", "lines", "double", "truncate", "bytes", "many")
    )
    first, second = sorted(rng.sample(range(len(tokens)), 2))
    (a, b), (c, d) = tokens[first], tokens[second]
    if kind == "delete":
        return (text[:a] + text[b:]).encode()
    if kind == "duplicate":
        return (text[:b] + " " + text[a:]).encode()
    if kind == "swap":
        return (text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]).encode()
    if kind == "truncate":
        return text[: rng.randrange(len(text))].encode()
    if kind == "bytes":
        data = bytearray(text.encode())
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(1, 4))
        return bytes(data)
    if kind == "many":
        at = rng.choice(tokens)[0]
        opening = rng.choice(("(", "[", "{", "-", "not ", "lambda:", "x.", "f(", "1+"))
        return (text[:at] + opening * rng.choice((10, 99, 300, 2500)) + text[at:]).encode()
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    many = rng.randrange(1, 5)
    part = lines[at : at + many]
    lines[at : at + many] = part * 2 if kind == "double" else []
    return "".join(lines).encode()


def judge(version: str, rng: Random) -> tuple[Verdict, PurePosixPath, bytes]:
    """Mutate one file of a release and plan the series on the result."""
    files = seam_files(version)
    path = rng.choice(sorted(anchored(version)))
    data = mutate(rng, files[path].decode())
    return judge_files({**files, path: data}, path, anchored(version)[path]), path, data


def judge_files(files: Files, path: PurePosixPath, texts: tuple[str, ...]) -> Verdict:
    """Plan the series on files of which one is a mutant."""
    data = files[path]
    compiles = _compiles(data)
    fair = compiles and _holds(data, texts)
    try:
        with _limited():
            plan = make_plan(_overlay(files, path), SERIES)
            if plan.conflicts:
                problem = "changes in spite of a conflict" if plan.changes.changes else ""
                reason = "; ".join(f"{o.seam}: {o.reason}" for o in plan.conflicts)
                return Verdict(False, fair, problem, reason)
            prove(plan)
    except Refused as refusal:
        return Verdict(False, fair, "", str(refusal))
    except Exception:  # noqa: BLE001
        return Verdict(False, fair, traceback.format_exc(limit=-6), "")
    for change in plan.changes.changes:
        if (change.path != path or compiles) and not _compiles(change.after):
            return Verdict(True, fair, "the result does not compile", "")
    return Verdict(True, fair, "", "")


_SHARED = Overlay(MemoryTree({})).cache


def _overlay(files: Files, mutant: PurePosixPath) -> Overlay:
    """Outline the files that are no mutants once."""
    overlay = Overlay(MemoryTree(files))
    for path, data in files.items():
        if path != mutant:
            key = (path, data)
            if key not in _SHARED.sources:
                _SHARED.sources[key] = read_source(path, data)
            overlay.cache.sources[key] = _SHARED.sources[key]
    if len(_SHARED.modules) > 500:
        _SHARED.modules.clear()
        _SHARED.uses.clear()
    overlay.cache.modules = _SHARED.modules
    overlay.cache.uses = _SHARED.uses
    return overlay


def _compiles(data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _holds(data: bytes, texts: tuple[str, ...]) -> bool:
    """Tell whether every anchored definition is there as it was, once."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(text.count(anchor) == 1 for anchor in texts)


@contextmanager
def _limited() -> Iterator[None]:
    def hung(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
