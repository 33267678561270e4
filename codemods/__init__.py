"""List the series of seams; each one is the file of that name in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sgl_npu_patch.codemods import (
    attention_comment,
    backend_lists,
    batch_invariant,
    device_dispatch,
    launch_guards,
    npu_ops,
    radix_cache,
    sampler,
    sampling_backend,
)
from sgl_npu_patch.engine.seam import Seam

SERIES = (
    backend_lists,
    radix_cache,
    sampling_backend,
    device_dispatch,
    batch_invariant,
    sampler,
    attention_comment,
    npu_ops,
    launch_guards,
)
"""The series `deterministic`, in the order in which its seams are judged and edited."""

DETERMINISTIC: Mapping[str, Seam] = MappingProxyType(
    {module.__name__.rpartition(".")[2]: module.SEAM for module in SERIES}
)
