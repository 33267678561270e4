"""Read the catalogue of operators: what is known of each, from where, and what replaces it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Verdict = Literal["replaced", "invariant", "native", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("replaced", "invariant", "native", "unknown")
_ON_NPU = (
    "torch_npu.", "torch.ops.npu.", "torch.ops.atb.", "torch.ops.custom.", "torch.ops._C_ascend.",
    "sgl_kernel_npu.",
)  # fmt: skip
"""Namespaces of operators that exist on an NPU only: there the bare name tells one."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Say what is known of an operator.

    Attributes:
        verdict: ``replaced`` where batch-invariant mode can replace it: the tree decides.
        why: one sentence on whether its result depends on the batch.
        covered_by: the seam, or the gap of adapted releases, that is about it.
        source: where the fact comes from.
        by: what must be registered, rebound or set for it to be replaced; empty for itself.
        methods: names of tensor methods that run it.
        everywhere: it runs on the NPU in code of all devices too, and is sought there.
        sums: whole numbers come out exactly, whatever the order.
    """

    verdict: Verdict
    why: str
    covered_by: str | None
    source: str
    by: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    everywhere: bool = False
    sums: bool = False


UNLISTED = Operator(
    "unknown",
    "The catalogue does not know this operator.",
    None,
    "src/sgl_npu_patch/audit/operators.toml has no entry",
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Hold the operators by name."""

    operators: Mapping[str, Operator]

    def find(self, name: str) -> Operator:
        """Give what is known of an operator, by its full name.

        Operators of the NPU's own namespaces are known by their last name; ``torch.npu.*`` stands
        for a whole namespace.
        """
        namespace, _, last = name.rpartition(".")
        keys = [name, *([last] if name.startswith(_ON_NPU) else ())]
        while namespace:
            keys.append(f"{namespace}.*")
            namespace = namespace.rpartition(".")[0]
        return next((self.operators[key] for key in keys if key in self.operators), UNLISTED)

    def methods(self) -> Mapping[str, Operator]:
        """Give the operator that each known tensor method runs."""
        return {method: each for each in self.operators.values() for method in each.methods}

    def everywhere(self) -> tuple[str, ...]:
        """List the last names of the operators that are sought in code of all devices."""
        names = {name.partition(" ")[0] for name, o in self.operators.items() if o.everywhere}
        return tuple(sorted({name.rpartition(".")[2] for name in names}))


@cache
def load() -> Catalogue:
    """Read the package's own catalogue."""
    text = files("sgl_npu_patch.audit").joinpath("operators.toml").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> Catalogue:
    """Read a catalogue; each of its entries may be about several operators."""
    found: dict[str, Operator] = {}
    for entry in tomllib.loads(text)["operator"]:
        for name in entry["names"]:
            if name in found:
                raise ValueError(f"{name} is in the catalogue twice")
            found[name] = _operator(entry)
    return Catalogue(found)


def _operator(entry: Mapping[str, Any]) -> Operator:
    if entry["verdict"] not in VERDICTS:
        raise ValueError(f"{entry['verdict']} is no verdict")
    return Operator(
        entry["verdict"],
        entry["why"],
        entry.get("covered_by"),
        entry["source"],
        tuple(entry.get("by", ())),
        tuple(entry.get("methods", ())),
        entry.get("everywhere", False),
        entry.get("sums", False),
    )
