"""Patch a checkout of SGLang so that deterministic inference works on Ascend NPUs.

The functions behind the commands are loaded when they are first asked for; see `engine.apply`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sgl_npu_patch._version import __version__

if TYPE_CHECKING:
    from sgl_npu_patch.codemods import SERIES
    from sgl_npu_patch.codemods.upstream.project import PROJECT
    from sgl_npu_patch.engine.apply import apply, plan, prove
    from sgl_npu_patch.engine.trees.open import open_tree

__all__ = ["PROJECT", "SERIES", "__version__", "apply", "open_tree", "plan", "prove"]

_HOMES = {
    "PROJECT": "codemods.upstream.project",
    "SERIES": "codemods",
    "apply": "engine.apply",
    "open_tree": "engine.trees.open",
    "plan": "engine.apply",
    "prove": "engine.apply",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
