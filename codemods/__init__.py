"""List the series of seams; each seam is the file of its name in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from sgl_npu_patch.codemods import (
    attention_comment,
    backend_lists,
    batch_invariant,
    device_dispatch,
    hardened_launch,
    hardened_operators,
    hardened_radix_cache,
    hardened_sampler,
    launch_guards,
    npu_ops,
    radix_cache,
    sampler,
    sampling_backend,
)
from sgl_npu_patch.engine.seam import Seam


def _series(*modules: ModuleType) -> Mapping[str, Seam]:
    return MappingProxyType({m.__name__.rpartition(".")[2]: m.SEAM for m in modules})


DETERMINISTIC = _series(
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
"""Adapts a tree that has no adaptation; in the order in which its seams are judged and edited."""

HARDENING = _series(
    hardened_radix_cache,
    hardened_operators,
    hardened_sampler,
    hardened_launch,
)
"""Closes the gaps of upstream's own adaptation."""

SERIES: Mapping[str, Mapping[str, Seam]] = MappingProxyType(
    {
        "deterministic": DETERMINISTIC,
        "hardening": HARDENING,
        "all": MappingProxyType({**HARDENING, **DETERMINISTIC}),
    }
)
"""What `--series` chooses from. All begins with `hardening`: the gaps that it closes are gone
where `deterministic` looks for them."""
