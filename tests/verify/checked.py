"""Patch a small package in memory, edit the result as a careless hand would, and check it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.verify import off_npu, static
from sgl_npu_patch.verify.static.judged import judge
from tests.helpers import ATTENTION, OPS, ROOT, SAMPLER, MemoryTree, package

Sources = dict[str, bytes]
"""Files by path below the package."""

_KNOWS_BACKEND = b"""\
    def __init__(self):
        self.use_ascend_backend = arguments().sampling_backend == "ascend"

    def forward("""

# What the small package names, but no seam looks at.
_DRAWN = b"""

def draw_elsewhere(logits, info):
    return logits


def drawn(weights, seeds, positions):
    return weights


def arguments():
    return None
"""
_REST = {
    OPS: b"\n\ndef triton_mm(a, b):\n    return a\n\n\ntriton_bmm = triton_mm\n",
    ATTENTION: b"\n\ndef fused_mla(q, k):\n    return q\n\n\nslow = fused_mla\n",
    "srt/utils/__init__.py": b"from sglang.srt.utils.common import is_npu\n",
    "srt/sampling/penaltylib.py": b"BatchedPenalizerOrchestrator = Frequency = Presence = object\n",
    "srt/layers/hashing.py": b"def noise_bits(seed, positions, columns):\n    return seed\n",
}


def original() -> Sources:
    """Return a package that needs every seam and in which every name is bound."""
    files = package()
    forward = files[SAMPLER].replace(b"    def forward(", _KNOWS_BACKEND, 1)
    return {
        **files,
        SAMPLER: forward + _DRAWN,
        **{path: files.get(path, b"") + text for path, text in _REST.items()},
    }


def patch(sources: Mapping[str, bytes]) -> Sources:
    """Give a package after the whole series."""
    plan = make_plan(memory(sources), SERIES)
    assert not plan.conflicts
    after = dict(sources)
    for change in plan.changes.changes:
        after[change.path.relative_to(ROOT).as_posix()] = change.after
    return after


@cache
def _patched() -> Sources:
    return patch(original())


def patched() -> Sources:
    """Give the small package after the whole series."""
    return dict(_patched())


def edited(path: str, *pairs: tuple[str, str], count: int = 1) -> Sources:
    """Exchange texts in one patched file, each of which stands there so often."""
    sources = patched()
    text = sources[path].decode()
    for old, new in pairs:
        assert text.count(old) == count, (text.count(old), old, text)
        text = text.replace(old, new)
    sources[path] = text.encode()
    return sources


def memory(sources: Mapping[str, bytes]) -> MemoryTree:
    """Make a tree of files."""
    return MemoryTree({ROOT / name: data for name, data in sources.items()})


def static_checks(sources: Mapping[str, bytes], only: Collection[str] = ()) -> dict[str, Result]:
    """Run the static checks."""
    return {r.id: r for r in static.check(judge(memory(sources)), only)}


def comparison(sources: Mapping[str, bytes], base: Mapping[str, bytes]) -> dict[str, Result]:
    """Compare a package with the unpatched one."""
    results = off_npu.check(judge(memory(sources)), judge(memory(base)))
    return {result.id: result for result in results}


def failures(results: Mapping[str, Result]) -> list[str]:
    """Name the checks that failed."""
    return [name for name, result in results.items() if result.verdict == "fail"]


def lay_out(sources: Mapping[str, bytes], root: Path) -> Path:
    """Write a package below a folder and return the folder."""
    for name, data in sources.items():
        target = root / "sglang" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (root / "sglang" / "srt" / "__init__.py").touch()
    return root
