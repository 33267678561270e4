"""A tree's modules in batch-invariant mode on a simulated NPU, and the kernels that run on it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from sgl_npu_patch.codemods.upstream import modules, symbols
from sgl_npu_patch.codemods.upstream.symbols import ASCEND, Symbol
from sgl_npu_patch.simulator import device, extension, schemas, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.modules import NotInTree, file_of, modules_of_class, parsed
from sgl_npu_patch.simulator.murmur import murmur_hash32
from sgl_npu_patch.simulator.sglang import VENDORED, Execution
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.machine import mode_modules
from sgl_npu_patch.verify.behaviour.sampler_machine import sampler_modules, surroundings

ATTENTION, NORM, LINEAR = modules.ATTENTION, modules.NORM, modules.LINEAR
SAMPLER = modules.SAMPLER
_VENDORED = "/".join(VENDORED.split(".")[1:]) + "/"

SIZES = (2, 3, 5, 8)
SUBJECT = 0
NEIGHBOURS = (range(1, 8), range(11, 18))

MOVED = frozenset(
    {
        "_copy_from", "_copy_from_and_resize", "_index_put_impl", "_local_scalar_dense",
        "_reshape_alias", "_reshape_copy", "_to_copy", "_unsafe_view", "alias", "all", "amax",
        "amin", "any", "arange", "argmax", "argmin", "argsort", "as_strided",
        "broadcast_tensors", "bucketize", "cat", "clone", "constant_pad_nd", "contiguous",
        "copy", "detach", "diagonal", "embedding", "empty", "empty_like", "empty_strided",
        "expand", "eye", "fill", "flip", "full", "full_like", "gather", "index", "index_copy",
        "index_fill", "index_put", "index_select", "is_nonzero", "isfinite", "item",
        "lift_fresh", "linspace", "masked_fill", "masked_scatter", "masked_select", "max",
        "min", "new_empty", "new_full", "new_ones", "new_zeros", "nonzero", "one_hot", "ones",
        "ones_like", "pad", "permute", "repeat",
        "repeat_interleave", "reshape", "resize", "resolve_conj", "resolve_neg", "roll",
        "scalar_tensor", "scatter", "searchsorted", "select", "select_scatter", "set", "slice",
        "slice_scatter", "sort", "split", "split_with_sizes", "squeeze", "stack", "t", "take",
        "take_along_dim", "tile", "to", "topk", "transpose", "tril", "triu", "unbind",
        "unfold", "unsqueeze", "view", "where", "zero", "zeros", "zeros_like",
    }
)  # fmt: skip
"""aten's operators that only move, choose or make elements; reviewed one by one. What adds
nothing up computes a row in the same way in every batch. Torch tells the pointwise ones."""


@dataclass(frozen=True)
class Event:
    """One kernel that ran on the simulated device, called from a line of the tree."""

    operator: str
    site: str
    wrapper: str
    results: tuple[torch.Tensor, ...]

    @property
    def kind(self) -> str:
        """Tell ``replaced``, ``native`` and ``unknown`` reductions and ``by row`` apart."""
        namespace, _, name = self.operator.partition("::")
        if namespace == extension.NAMESPACE:
            return "replaced"
        if namespace == torch_npu.NAMESPACE:
            return "by row" if name in torch_npu.ROW_BY_ROW else "native"
        if device.is_reduction(self.operator):
            return "native"
        return "by row" if _moves_or_maps(self.operator) else "unknown"

    @property
    def label(self) -> str:
        """Return what the tree called, by the wrapper's name where there is one."""
        if self.wrapper:
            return self.wrapper.removesuffix("_batch_invariant")
        if self.operator.startswith("aten::"):
            return device.plain_name(self.operator).strip("_")
        return self.operator.partition("::")[2].removesuffix("_batch_invariant")


class Recorder:
    """Write down the kernels that run, while it is entered, with copies of their results."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self.events: list[Event] = []

    def __call__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Observe one kernel."""
        site, wrapper = self._caller()
        given = result if result is not None else (kwargs.get("out"), *args)
        found = given if isinstance(given, (tuple, list)) else (given,)
        tensors = [t for t in found if isinstance(t, torch.Tensor)]
        # A kernel without a result writes to its last argument.
        kept = tensors if result is not None else tensors[-1:]
        copies = tuple(_host(tensor).clone() for tensor in kept)
        self.events.append(Event(name, site, wrapper, copies))

    def _caller(self) -> tuple[str, str]:
        """Return the innermost line of the tree outside the replacements, and the outermost of
        these that lies between."""
        wrapper = ""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self._package):
                path = file.removeprefix(self._package).replace(os.sep, "/")
                if not path.startswith(_VENDORED):
                    return f"{path}:{frame.f_lineno}", wrapper
                wrapper = _function_name(frame)
            frame = frame.f_back  # type: ignore[assignment]
        return "", wrapper


class World:
    """A tree's modules in batch-invariant mode, on the adversarial NPU."""

    def __init__(self, package: Path, version: str) -> None:
        device.install()
        known = schemas.of(version)
        kernels = {name: k for name, k in torch_npu.LAYER_KERNELS.items() if name in known}
        fake = torch_npu.install(version, **kernels)
        ours = extension.install("2.0.0", version, narrow=False)
        self.package = package
        self._surroundings = surroundings(ASCEND)
        self.torch_npu = fake
        self.execution = Execution(
            package,
            "npu",
            {"torch_npu": fake, "torch_npu.npu": fake.npu, "batch_invariant_ops": ours},
            real=[
                *mode_modules(package),
                *sampler_modules(package),
                *modules_of_class(package, ATTENTION, "forward_extend", "forward_decode"),
                *modules_of_class(package, NORM, "forward_npu"),
                *modules_of_class(package, LINEAR, "apply"),
            ],
            names={
                **self._surroundings,
                **dict.fromkeys(_bases(package), nn.Module),
                "murmur_hash32": _hash,
            },
        )
        # Before the mode is on, as in a server: what a module takes by value stays native.
        for symbol in (LINEAR, NORM, SAMPLER, ATTENTION):
            with suppress(Exception):
                self.module(symbol)
        with self.execution:
            self.execution.value(symbols.ENABLE)()

    def module(self, symbol: Symbol) -> ModuleType:
        """Execute the module that defines a class of the tree, or raise `NotInTree`."""
        with self.execution:
            return self.execution.defining(symbol)

    def sampler(self, backend: str) -> Any:
        """Return a sampler of the tree for one sampling backend."""
        arguments: Any = self._surroundings["global_server_args_dict"]
        arguments["sampling_backend"] = backend
        module: Any = self.module(SAMPLER)
        with self.execution:
            return module.Sampler()

    def events(self, layer: Layer, rows: Sequence[int]) -> tuple[list[torch.Tensor], list[Event]]:
        """Run a layer on a batch and return each row's result, and what ran."""
        recorder = Recorder(self.package)
        with self.execution, torch.no_grad(), device.adversarial(), device.observed(recorder):
            results = layer(rows)
        return results, recorder.events


Layer = Callable[[Sequence[int]], list[torch.Tensor]]
"""Computes a batch of numbered rows; gives one CPU tensor a row."""


@cache
def world_of(package: Path, version: str) -> World:
    return World(package, version)


@dataclass(frozen=True)
class Ran:
    """What ran of a layer, and where a row's bits began to depend on its batch, if they did."""

    by_row: tuple[str, ...]
    replaced: tuple[str, ...]
    native: tuple[str, ...]
    unknown: tuple[str, ...]
    differs: Failed | None

    def __str__(self) -> str:
        parts = (
            ("replaced", self.replaced),
            ("row by row", self.by_row),
            ("native", self.native),
            ("unknown", self.unknown),
        )
        return "; ".join(f"{name}: {', '.join(found) or 'none'}" for name, found in parts)


def try_out(world: World, layer: Layer) -> Ran:
    (alone,), events = world.events(layer, [SUBJECT])
    differs: Failed | None = None
    seen = list(events)
    for size in SIZES:
        for others in NEIGHBOURS:
            place = size // 2
            rows = [*others[: size - 1]]
            rows.insert(place, SUBJECT)
            results, among = world.events(layer, rows)
            seen += among
            if differs is None and not _same_bits(results[place], alone):
                differs = _first_difference(world, events, among, size)
    return Ran(
        _by_row(seen), _replaced(seen), _sites(seen, "native"), _sites(seen, "unknown"), differs
    )


def _first_difference(world: World, alone: list[Event], among: list[Event], size: int) -> Failed:
    """Name the first kernel of which the row's result is nowhere in the batch's results."""
    differing = [event for event in alone if not _occurs(event, among)]
    suspects = [event for event in differing if event.kind in ("native", "unknown")]
    for event in suspects or differing:
        return Failed(
            f"{event.operator} at {event.site} gives a row other bits in a batch of {size} than "
            "alone",
            expected="the bits of the row alone",
            found=f"{event.kind} kernel {event.operator}",
            code=_line(world, event.site),
        )
    return Failed(f"a row has other bits in a batch of {size} than alone")


def _occurs(event: Event, among: list[Event]) -> bool:
    candidates = [e for e in among if (e.operator, e.site) == (event.operator, event.site)]
    if not candidates:
        # The batch took another way: nothing to compare with.
        return True
    return any(
        all(map(_within, event.results, candidate.results))
        for candidate in candidates
        if len(candidate.results) == len(event.results)
    )


def _within(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Tell whether a tensor's bits stand in another along its first axis."""
    if part.dim() == 0 or part.shape[1:] != whole.shape[1:]:
        return part.shape != whole.shape or _same_bits(part, whole)
    last = whole.shape[0] - part.shape[0]
    return any(_same_bits(part, whole[start : start + len(part)]) for start in range(last + 1))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(tensor.numel()).copy_(tensor.reshape(-1)).view(torch.uint8)


def _replaced(events: list[Event]) -> tuple[str, ...]:
    """Return what the tree called and the extension, or a wrapper of ours, computed."""
    return tuple(dict.fromkeys(e.label for e in events if e.wrapper or e.kind == "replaced"))


def _by_row(events: list[Event]) -> tuple[str, ...]:
    """Return the operators of torch_npu that see one row at a time."""
    found = [e for e in events if e.kind == "by row" and e.operator.startswith("npu::")]
    return tuple(dict.fromkeys(e.operator.partition("::")[2] for e in found))


def _sites(events: list[Event], kind: str) -> tuple[str, ...]:
    found = [event for event in events if event.kind == kind]
    return tuple(dict.fromkeys(f"{event.label} ({event.site})" for event in found))


def _line(world: World, site: str) -> str:
    path, _, number = site.rpartition(":")
    if not path:
        return ""
    lines = (world.package / path).read_text(encoding="utf-8").splitlines()
    return lines[int(number) - 1].strip()


@cache
def _moves_or_maps(operator: str) -> bool:
    name, _, overload = operator.partition("::")[2].partition(".")
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, overload or "default", None)
    if found is not None and (torch.Tag.pointwise in found.tags or found.is_view):
        return True
    return device.plain_name(operator) in MOVED


def _function_name(frame: Any) -> str:
    name: str = frame.f_code.co_name
    if name != "__call__":
        return name
    words = type(frame.f_locals["self"]).__name__.strip("_")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).strip("_")


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return cpu(tensor) if tensor.device.type == device.NPU else tensor


def _hash(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return npu(murmur_hash32(*map(cpu, (seeds, positions, columns))))


def _bases(package: Path) -> set[str]:
    """Name the classes that those of the norms' module derive from."""
    try:
        module = parsed(file_of(package, NORM))
    except NotInTree:
        return set()
    return {
        base.id
        for node in module.body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
