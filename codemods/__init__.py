"""List the series of seams; each seam is the file of its name in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

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


def _series(*modules: ModuleType) -> Mapping[str, Seam]:
    return MappingProxyType({m.__name__.rpartition(".")[2]: m.SEAM for m in modules})


SERIES = _series(
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
"""The seams, in the order in which they are judged and edited."""
