"""Small packages of the shape of SGLang, held in memory, and what a seam makes of them.

`codemods/shapes/` holds one folder for each shape, named after the first of the releases whose
shape it has. Every seam has something to do in that of 0.5.12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import Outcome
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.project import Project

Files = Mapping[str, str | bytes | None]
"""Sources by path below the package; None takes the file away."""

ROOT = PurePosixPath("sglang")
SERVER_ARGS = "srt/server_args.py"
SAMPLER = "srt/layers/sampler.py"
OPS = "srt/batch_invariant_ops/batch_invariant_ops.py"
COMMON = "srt/utils/common.py"
ATTENTION = "srt/hardware_backend/npu/attention/ascend_backend.py"
NATIVE_OPS = f"{PROJECT.vendor_folder}/npu_batch_invariant_ops.py"

_SHAPES = Path(__file__).parent / "codemods" / "shapes"
SHAPES = sorted(
    (path.name for path in _SHAPES.iterdir()), key=lambda name: [*map(int, name.split("."))]
)


@dataclass(slots=True)
class MemoryTree:
    """A source tree whose files are a mapping."""

    files: Mapping[PurePosixPath, bytes]
    label: str = "memory"
    package: PurePosixPath = ROOT
    revision: str | None = None
    project: Project = PROJECT

    def copies(self) -> tuple[PurePosixPath, ...]:
        """Return none; see `SourceTree.copies`."""
        return ()

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the Python files; see `SourceTree.containing`."""
        names = self.files if among is None else among
        return tuple(
            sorted(n for n in names if n.suffix == ".py" and needle in self.files.get(n, b""))
        )

    def read(self, path: PurePosixPath) -> bytes | None:
        """Return a file's bytes; see `SourceTree.read`."""
        return self.files.get(path)


@cache
def _shape(name: str) -> dict[str, bytes]:
    root = _SHAPES / name
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.py"))
    }


def shape(name: str) -> dict[str, bytes]:
    """Return the files of a shape by their paths below the package."""
    return dict(_shape(name))


def package(changes: Files | None = None) -> dict[str, bytes]:
    """Return the files of a package that needs every seam, some of them exchanged."""
    sources: dict[str, str | bytes | None] = {**_shape("0.5.12"), **(changes or {})}
    return {
        name: text.encode() if isinstance(text, str) else text
        for name, text in sources.items()
        if text is not None
    }


def judge(seam: str, files: Mapping[str, bytes]) -> tuple[Outcome, dict[str, bytes]]:
    """Run one seam, without those it needs, on a package; return the files after it too."""
    tree = MemoryTree({ROOT / name: data for name, data in files.items()})
    series = {seam: replace(SERIES[seam], needs=(), needs_if_defined=())}
    plan = make_plan(tree, series)
    after = dict(files)
    for change in plan.changes.changes:
        assert change.before == tree.read(change.path)
        after[change.path.relative_to(ROOT).as_posix()] = change.after
    return plan.outcomes[0], after
