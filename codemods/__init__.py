"""List the series of seams; each seam is the file of its name in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgl_npu_patch.engine.seam import Seam

    SERIES: Mapping[str, Seam]
    """The seams, in the order in which they are judged and edited."""

_SEAMS = (
    "backend_lists",
    "radix_cache",
    "sampling_backend",
    "device_dispatch",
    "batch_invariant",
    "sampler",
    "attention_comment",
    "npu_ops",
    "launch_guards",
    "penalties",
    "seeded_sampling",
)


@cache
def _series() -> Mapping[str, Seam]:
    return MappingProxyType({name: import_module(f"{__name__}.{name}").SEAM for name in _SEAMS})


def __getattr__(name: str) -> object:
    # Loaded when it is asked for: what is known of SGLang is in this package too, and libcst takes
    # longer to import than all that many commands do.
    if name == "SERIES":
        return _series()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
