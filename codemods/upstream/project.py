"""Describe SGLang to the engine: where it stands, what is searched for, what is added to it."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from sgl_npu_patch.codemods.upstream.operators import FUSED_ATTENTION_V2
from sgl_npu_patch.codemods.upstream.symbols import ENABLED, FIRST, FORWARD_EXTEND, SYMBOLS
from sgl_npu_patch.engine.project import Project

_LONG = 14
"""How long a part of names has to be to stand in few files."""


def _stems() -> tuple[bytes, ...]:
    """List the parts that the names have in common, and the names that share none."""
    symbols = (name for symbol in SYMBOLS.values() for name in symbol.names)
    names = (ENABLED, *symbols, FORWARD_EXTEND, FUSED_ATTENTION_V2)
    parts = {name: _parts(name) for name in names if len(name) >= _LONG}
    shared = Counter(part for found in parts.values() for part in found)
    stems = (
        max(found, key=lambda part: (shared[part], len(part)), default="")
        for found in ([p for p in found if shared[p] > 1] for found in parts.values())
    )
    return tuple(dict.fromkeys((s or n).encode() for s, n in zip(stems, parts, strict=True)))


def _parts(name: str) -> set[str]:
    words = name.split("_")
    ends = range(len(words) + 1)
    parts = ("_".join(words[first:last]) for first in ends for last in ends)
    return {part for part in parts if len(part) >= _LONG}


PROJECT = Project(
    name="SGLang",
    package="sglang",
    core="srt",
    layouts=("python/sglang", "sglang", "."),
    marker=ENABLED,
    too_old=(
        "this SGLang has no deterministic inference: nothing in {package} mentions "
        f"{ENABLED}, which came with {FIRST}; there is nothing to patch, take a newer SGLang"
    ),
    vendor_folder=PurePosixPath("srt/hardware_backend/npu/batch_invariant_ops"),
    vendored=("npu_ops", "launch_guards", "penalties", "seeded_sampling"),
    modules="sgl_npu_patch.npu_ops",
    templates="sgl_npu_patch.templates",
    header=(
        "# Written by sgl-npu-patch {version}: do not edit, `sgl-npu-patch apply` refreshes it."
    ),
    # A name that short is asked for by its definition.
    stems=(*_stems(), b"def is_npu"),
    wheel_suffix="npu.deterministic",
)
"""What `apply` patches; upstream keeps no `__init__.py` in the vendor folder."""
