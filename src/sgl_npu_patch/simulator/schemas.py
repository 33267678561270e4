"""Give the operator schemas of the torch_npu versions that can be simulated.

They stand in `schemas.json` beside this module, so that the simulation needs no network:
`python -m tests.simulator.refresh` reads them out of the real wheels, and a test compares.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict

import torch
from torch.utils import _pytree as pytree

from sgl_npu_patch.simulator.device import NPU, cpu

DEFAULT = "2.10.0"
"""Offers graph handlers; 2.8.0.post2 is one that does not."""


class Version(TypedDict):
    """Hold what is kept of one version of torch_npu."""

    graph_handlers: bool
    operators: list[str]
    schemas: dict[str, str]


def versions() -> tuple[str, ...]:
    """Name the versions that can be simulated."""
    return tuple(_kept())


def of(version: str) -> dict[str, str]:
    """Return the schemas of a torch_npu version by operator name with overload."""
    return _kept()[version]["schemas"]


def has_graph_handlers(version: str) -> bool:
    """Return whether that torch_npu lets graph handlers be registered by operator."""
    return _kept()[version]["graph_handlers"]


def operators(version: str) -> frozenset[str]:
    """Return the names of all operators of that torch_npu, simulated or not."""
    return frozenset(_kept()[version]["operators"])


def on_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with the CPU tensors behind npu tensors."""
    return {
        name: pytree.tree_map_only(
            torch.Tensor, lambda t: cpu(t) if t.device.type == NPU else t, given
        )
        for name, given in arguments.items()
    }


@cache
def _kept() -> dict[str, Version]:
    text = files("sgl_npu_patch.simulator").joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, Version] = json.loads(text)
    return found
