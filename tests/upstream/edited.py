"""Edit the sources of a release in memory, plan the series on them, and lay them out to run."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.overlay import Cache, Overlay
from sgl_npu_patch.engine.plan import Plan, make_plan, prove
from sgl_npu_patch.engine.text.block import Kind
from sgl_npu_patch.engine.text.source import Source, read_source
from sgl_npu_patch.engine.view import View
from tests.helpers import (
    ATTENTION,
    COMMON,
    NATIVE_OPS,
    OPS,
    ROOT,
    SAMPLER,
    SERVER_ARGS,
    MemoryTree,
)
from tests.upstream.releases import release_tree

__all__ = ["ATTENTION", "COMMON", "NATIVE_OPS", "OPS", "SAMPLER", "SERVER_ARGS"]

Files = dict[str, bytes]
"""Sources by path below the package."""

_READ = re.compile(b"|".join((b"batch_invariant", *map(re.escape, PROJECT.stems))))
"""What a file mentions that some seam may read."""
_SCRATCH = tempfile.TemporaryDirectory(prefix="sgl-npu-patch-edited-")
_CACHE = Cache()


@cache
def _sources(version: str) -> Mapping[str, bytes]:
    package = release_tree(version) / "sglang"
    found = {}
    for path in sorted(package.rglob("*.py")):
        data = path.read_bytes()
        if _READ.search(data):
            found[path.relative_to(package).as_posix()] = data
    return found


def sources(version: str) -> Files:
    """Return the files of a release that the seams read."""
    return dict(_sources(version))


def edit(files: Files, path: str, *pairs: tuple[str, str]) -> None:
    """Replace texts of one file, each of which must stand there exactly once."""
    text = files[path].decode()
    for old, new in pairs:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    files[path] = text.encode()


@lru_cache(maxsize=256)
def _outlined(path: PurePosixPath, data: bytes) -> Source:
    return read_source(path, data)


def cut(files: Mapping[str, bytes], path: str, name: str, kind: Kind = "function") -> str:
    """Return the text of one definition, decorators included."""
    source = _outlined(PurePosixPath(path), files[path])
    (block,) = source.named(name, kind)
    return source.cut(block)


def within(files: Files, path: str, name: str, *pairs: tuple[str, str]) -> None:
    """Replace texts of one function, each of which must stand there exactly once."""
    old = cut(files, path, name)
    piece = {"piece": old.encode()}
    edit(piece, "piece", *pairs)
    edit(files, path, (old, piece["piece"].decode()))


def take(
    files: Files, given: Mapping[str, bytes], path: str, name: str, kind: Kind = "function"
) -> None:
    """Replace a definition by that of another tree."""
    edit(files, path, (cut(files, path, name, kind), cut(given, path, name, kind)))


def overlay(files: Mapping[str, bytes]) -> Overlay:
    """Return an overlay of these files that keeps what was parsed for the next tree."""
    tree = MemoryTree({ROOT / name: data for name, data in files.items()})
    return Overlay(tree, Cache(sources=_CACHE.sources, modules=_CACHE.modules, uses=_CACHE.uses))


def judge(files: Mapping[str, bytes]) -> Plan:
    """Run the series, and once more on its result."""
    plan = make_plan(overlay(files), SERIES)
    prove(plan)
    return plan


def native_gaps(version: str) -> dict[str, str]:
    """Return the gaps that upstream's own form has in a release by its structure, with the seam."""
    view = View(overlay(sources(version)), [])
    return {gap: name for name, seam in SERIES.items() for gap in seam.gaps(view)}


def result(files: Mapping[str, bytes], plan: Plan) -> Files:
    """Return the files as the plan would leave them."""
    changed = {c.path.relative_to(ROOT).as_posix(): c.after for c in plan.changes.changes}
    return {**files, **changed}


def statuses(plan: Plan) -> dict[str, str]:
    """Return the status of every seam."""
    return {outcome.seam: outcome.status for outcome in plan.outcomes}


def lay_out(version: str, files: Mapping[str, bytes]) -> Path:
    """Write files over links to the rest of their release and return the tree."""
    tree = Path(tempfile.mkdtemp(dir=_SCRATCH.name))
    pristine = release_tree(version) / "sglang"
    folders = [(folder, names) for folder, _, names in os.walk(pristine / "srt")]
    folders.append((str(pristine), [path.name for path in pristine.glob("*.py")]))
    for folder, names in folders:
        target = tree / "sglang" / Path(folder).relative_to(pristine)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = (target / name).relative_to(tree / "sglang").as_posix()
            if name.endswith(".py") and path not in files:
                (target / name).symlink_to(Path(folder, name))
    _write(tree / "sglang", files.items())
    return tree


def _write(package: Path, files: Iterable[tuple[str, bytes]]) -> None:
    for name, data in files:
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
