"""Run a tree's layers on one row alone and in batches, on an NPU whose kernels see the batch.

Unreplaced reductions of the simulated device differ in their last bits from one batch size to
another; replaced ones compute row by row. So a row that comes out of every batch with the bits that
it has alone went through replaced reductions only, or through reductions whose last bits do not
reach the result. Each check says which reductions ran.
"""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from sgl_npu_patch.simulator import device, extension, schemas, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.sglang import Execution, Stub, murmur_hash32
from sgl_npu_patch.verify.behaviour import Failed, NotApplicable, Run, Subject, check
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    SAMPLER,
    Request,
    around,
    hash_module,
    random_logits,
    sampling_info,
)

MODE = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
LINEAR = "sglang.srt.layers.quantization.unquant"
NORM = "sglang.srt.layers.layernorm"
ATTENTION = (
    "sglang.srt.hardware_backend.npu.attention.ascend_backend",
    "sglang.srt.layers.attention.ascend_backend",
)
"""Where the attention backend is: from 0.5.6.post1 on, and before."""
_VENDORED = "srt/hardware_backend/npu/batch_invariant_ops/"

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
        ours = extension.install("2.0.0", version, strided=True)
        self.package = package
        self.torch_npu = fake
        self.execution = Execution(
            package,
            "npu",
            {
                **around("ascend"),
                **_bases(package),
                "torch_npu": fake,
                "torch_npu.npu": fake.npu,
                "batch_invariant_ops": ours,
                hash_module(package): {"murmur_hash32": _hash},
            },
            real=["sglang.srt.layers.logprob_processor"],
        )
        # Before the mode is on, as in a server: what a module takes by value stays native.
        for name in (LINEAR, NORM, SAMPLER, *ATTENTION):
            with suppress(Exception):
                self.module(name)
        with self.execution:
            self.execution.load(MODE).enable_batch_invariant_mode()

    def module(self, *names: str) -> ModuleType:
        """Execute the first of these modules that the tree has."""
        with self.execution:
            for name in names:
                if self.execution.file(name) is not None:
                    return self.execution.load(name)
        raise NotApplicable(f"the tree has no {' or '.join(names)}")

    def events(self, layer: Layer, rows: Sequence[int]) -> tuple[list[torch.Tensor], list[Event]]:
        """Run a layer on a batch and return each row's result, and what ran."""
        recorder = Recorder(self.package)
        with self.execution, torch.no_grad(), device.adversarial(), device.observed(recorder):
            results = layer(rows)
        return results, recorder.events


Layer = Callable[[Sequence[int]], list[torch.Tensor]]
"""Computes a batch of numbered rows; gives one CPU tensor a row."""


@cache
def _world(package: Path, version: str) -> World:
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


def _try_out(world: World, layer: Layer) -> Ran:
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


def _promised(subject: Subject, layer: Callable[[World], Layer]) -> str:
    """Demand that a row has the same bits in every batch; say what ran."""
    world = _world(subject.package, subject.torch_npu)
    ran = _executed(world, layer)
    if ran.differs is not None:
        raise ran.differs
    if ran.unknown:
        raise NotApplicable(f"not proven: {', '.join(ran.unknown)} may add up; {ran}")
    return str(ran)


def _not_promised(subject: Subject, layer: Callable[[World], Layer], why: str) -> None:
    """Say what ran of a layer that the series does not make batch-invariant."""
    world = _world(subject.package, subject.torch_npu)
    ran = _executed(world, layer, f"not promised: {why}; ")
    if not ran.native:
        raise NotApplicable(f"not promised: {why}, though no native reduction ran; {ran}")
    named = ", ".join(ran.native)
    raise NotApplicable(f"not promised: {why} runs {named}, which nothing replaces; {ran}")


def _executed(world: World, layer: Callable[[World], Layer], why: str = "") -> Ran:
    """Try a layer out, or raise NotApplicable where it needs more than is simulated.

    What the replacements raise is the tree's own failure.
    """
    try:
        return _try_out(world, layer(world))
    except NotApplicable:
        raise
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if any(_VENDORED in file.replace(os.sep, "/") for file in files):
            raise
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise NotApplicable(f"{why}it cannot be executed here: {message}") from error


def _layer_check(*, seam: str = "batch_invariant", gap: str = "") -> Callable[[Run], Run]:
    return check(seam, gap=gap)


@_layer_check()
def linear(subject: Subject) -> str:
    """A row of a linear layer without bias has the same bits in every batch."""
    return _promised(subject, lambda world: _linear(world, bias=False))


@_layer_check(gap="addmm_not_registered")
def linear_with_bias(subject: Subject) -> str:
    """A row of a linear layer with bias has the same bits in every batch."""
    return _promised(subject, lambda world: _linear(world, bias=True))


@_layer_check()
def rms_norm(subject: Subject) -> str:
    """A row of RMSNorm has the same bits in every batch."""
    return _promised(subject, lambda world: _norm(world, "RMSNorm", residual=False))


@_layer_check()
def rms_norm_residual(subject: Subject) -> str:
    """A row of RMSNorm with a residual has the same bits in every batch."""
    return _promised(subject, lambda world: _norm(world, "RMSNorm", residual=True))


@_layer_check()
def gemma_rms_norm(subject: Subject) -> None:
    """A row of GemmaRMSNorm has the same bits in every batch."""
    _not_promised(
        subject, lambda world: _norm(world, "GemmaRMSNorm", residual=False), "GemmaRMSNorm"
    )


@_layer_check()
def gemma_rms_norm_residual(subject: Subject) -> None:
    """A row of GemmaRMSNorm with a residual has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: _norm(world, "GemmaRMSNorm", residual=True),
        "GemmaRMSNorm with a residual",
    )


@_layer_check()
def attention_decode_fia(subject: Subject) -> str:
    """With ASCEND_USE_FIA, a request's decode step has the same bits in every batch."""
    return _promised(subject, lambda world: _attention(world, decode=True, fia=True))


@_layer_check(gap="alias_not_rebound")
def attention_prefill_fia(subject: Subject) -> str:
    """With ASCEND_USE_FIA, a request's prefill has the same bits in every batch."""
    return _promised(subject, lambda world: _attention(world, decode=False, fia=True))


@_layer_check()
def attention_decode_no_fia(subject: Subject) -> None:
    """Without ASCEND_USE_FIA, a request's decode step has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: _attention(world, decode=True, fia=False),
        "decode without ASCEND_USE_FIA",
    )


@_layer_check()
def attention_prefill_no_fia(subject: Subject) -> None:
    """Without ASCEND_USE_FIA, a request's prefill has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: _attention(world, decode=False, fia=False),
        "prefill without ASCEND_USE_FIA",
    )


@_layer_check()
def attention_mla_fia(subject: Subject) -> None:
    """With MLA and ASCEND_USE_FIA, a request's attention has the same bits in every batch."""
    _only_read(subject, "MLA with ASCEND_USE_FIA", {"self.use_mla": True, "self.use_fia": True})


@_layer_check()
def attention_mla_no_fia(subject: Subject) -> None:
    """With MLA but no ASCEND_USE_FIA, a request's attention has the same bits in every batch."""
    _only_read(subject, "MLA without ASCEND_USE_FIA", {"self.use_mla": True, "self.use_fia": False})


@_layer_check()
def attention_second_version(subject: Subject) -> None:
    """Where the tree calls npu_fused_infer_attention_score_v2, rows have the same bits."""
    _only_read(subject, "npu_fused_infer_attention_score_v2", {}, "_attention_score_v2")


@_layer_check(seam="sampler")
def sampler_simple(subject: Subject) -> str:
    """A row that nothing filters is drawn with the same bits in every batch."""
    return _promised(subject, lambda world: _sampler(subject, world, {}))


@_layer_check(seam="sampler")
def sampler_fused(subject: Subject) -> str:
    """A row that npu_top_k_top_p filters is drawn with the same bits in every batch."""
    return _promised(subject, lambda world: _sampler(subject, world, {"top_k": 20, "top_p": 0.8}))


@_layer_check(seam="sampler")
def sampler_sorted(subject: Subject) -> str:
    """A row filtered by sorted probabilities is drawn with the same bits in every batch."""
    return _promised(subject, lambda world: _sampler(subject, world, {"top_p": 0.8}))


_WIDTH = 24


def _linear(world: World, *, bias: bool) -> Layer:
    method: Any = world.module(LINEAR).UnquantizedLinearMethod()
    layers = {
        dtype: SimpleNamespace(weight=_weight(16, _WIDTH, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    }

    def run(rows: Sequence[int]) -> list[torch.Tensor]:
        parts = []
        for dtype, layer in layers.items():
            x = npu(torch.stack([_random(_WIDTH, seed=row) for row in rows]).to(dtype))
            added = _weight(16, dtype=dtype) if bias else None
            parts.append(cpu(method.apply(layer, x, added)))
        return [torch.stack([part[i].float() for part in parts]) for i in range(len(rows))]

    return run


def _norm(world: World, name: str, *, residual: bool) -> Layer:
    module: Any = world.module(NORM)
    with world.execution:
        norm: Any = getattr(module, name)(_WIDTH)
    norm.weight = nn.Parameter(_weight(_WIDTH), requires_grad=False)
    if hasattr(norm, "gemma_weight"):
        norm.gemma_weight = npu(cpu(norm.weight.data) + 1)

    def run(rows: Sequence[int]) -> list[torch.Tensor]:
        x, carried = (
            npu(torch.stack([_random(_WIDTH, seed=row + base) for row in rows]))
            for base in (0, 100)
        )
        if not residual:
            return [*cpu(norm.forward_npu(x))]
        normed, total = norm.forward_npu(x, carried)
        return [torch.stack([cpu(normed)[i], cpu(total)[i]]) for i in range(len(rows))]

    return run


_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES = 4, 2, 128, 4, 2


def _attention(world: World, *, decode: bool, fia: bool) -> Layer:
    module: Any = world.module(*ATTENTION)
    with world.execution:
        backend = _backend(module, fia=fia)
    layer = _Loose(
        layer_id=0,
        tp_q_head_num=_HEADS,
        tp_k_head_num=_KV_HEADS,
        tp_v_head_num=_KV_HEADS,
        qk_head_dim=_HEAD,
        v_head_dim=_HEAD,
        head_dim=_HEAD,
        scaling=0.3,
        logit_cap=0,
        sliding_window_size=-1,
    )

    def run(rows: Sequence[int]) -> list[torch.Tensor]:
        lengths = [3 + row % 5 for row in rows]
        batch, (q, k, v) = _forward_batch(rows, lengths, decode=decode)
        backend.token_to_kv_pool = batch.token_to_kv_pool
        backend.forward_metadata = _metadata(module, batch, lengths, decode=decode)
        forward = backend.forward_decode if decode else backend.forward_extend
        found = cpu(forward(q, k, v, layer, batch))
        tokens = [1] * len(rows) if decode else lengths
        parts = torch.split(found.reshape(sum(tokens), -1), tokens)
        return [part.clone() for part in parts]

    return run


class _Loose(SimpleNamespace):
    """An object of the tree's of which only what matters is given; the rest is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _ForwardMode:
    """A forward mode: only what is named is true."""

    def __init__(self, *true: str) -> None:
        self._true = true

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: name in self._true


def _backend(module: Any, *, fia: bool) -> Any:
    """Make an attention backend without its server: flags off but the ones asked for."""

    class Backend(module.AscendAttnBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Stub(name)

    backend: Any = Backend()
    hidden = torch.ones(64, 64, dtype=torch.bool).triu(1)
    for name, value in {
        "device": "npu",
        "page_size": _PAGE,
        "use_fia": fia,
        "use_mla": False,
        "use_alibi": False,
        "use_native_sdpa": False,
        "graph_mode": False,
        "is_hybrid_swa": False,
        "is_dllm_model": False,
        "enable_torch_compile": False,
        "attn_cp_size": 1,
        "mask": npu(hidden.half()),
        "fia_mask": npu(hidden),
    }.items():
        setattr(backend, name, value)
    return backend


def _forward_batch(
    rows: Sequence[int], lengths: Sequence[int], *, decode: bool
) -> tuple[_Loose, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Lay out requests with pages of their own; all their keys are in the cache already."""
    keys, values = (
        [
            _random(length, _KV_HEADS, _HEAD, seed=row + base)
            for row, length in zip(rows, lengths, strict=True)
        ]
        for base in (200, 300)
    )
    caches = [torch.zeros(len(rows) * _PAGES * _PAGE, _KV_HEADS, _HEAD) for _ in range(2)]
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        start = place * _PAGES * _PAGE
        caches[0][start : start + len(key)] = key
        caches[1][start : start + len(value)] = value
    k_cache, v_cache = (npu(c.reshape(-1, _PAGE, _KV_HEADS, _HEAD)) for c in caches)
    tokens = [1] * len(rows) if decode else list(lengths)
    queries = [
        _random(n, _HEADS * _HEAD, seed=row + 400) for row, n in zip(rows, tokens, strict=True)
    ]
    new = [[t[-n:] for t, n in zip(full, tokens, strict=True)] for full in (keys, values)]
    pool = _Loose(
        set_kv_buffer=lambda *args, **kwargs: None,
        get_key_buffer=lambda layer_id: k_cache,
        get_value_buffer=lambda layer_id: v_cache,
        get_kv_buffer=lambda layer_id: (k_cache, v_cache),
    )
    batch = _Loose(
        forward_mode=_ForwardMode(
            *(("is_decode", "is_decode_or_idle") if decode else ("is_extend", "is_prefill"))
        ),
        batch_size=len(rows),
        seq_lens=npu(torch.tensor(lengths, dtype=torch.int32)),
        seq_lens_cpu=torch.tensor(lengths, dtype=torch.int32),
        extend_seq_lens_cpu=tokens,
        extend_prefix_lens_cpu=[0] * len(rows),
        num_token_non_padded_cpu=sum(tokens),
        global_num_token_non_padded_cpu=sum(tokens),
        token_to_kv_pool=pool,
    )
    return batch, (
        npu(torch.cat(queries)),
        npu(torch.cat(new[0])),
        npu(torch.cat(new[1])),
    )


def _metadata(module: Any, batch: _Loose, lengths: Sequence[int], *, decode: bool) -> Any:
    metadata = module.ForwardMetadata()
    tokens = [1] * len(lengths) if decode else list(lengths)
    table = torch.arange(len(lengths) * _PAGES, dtype=torch.int32).reshape(-1, _PAGES)
    for name, value in {
        "block_tables": npu(table),
        "seq_lens": batch.seq_lens,
        "seq_lens_cpu_int": batch.seq_lens_cpu,
        "seq_lens_cpu_list": list(lengths),
        "extend_seq_lens_cpu_int": torch.tensor(tokens, dtype=torch.int32),
        "extend_seq_lens": npu(torch.tensor(tokens, dtype=torch.int32)),
        "seq_lens_list_cumsum": np.cumsum(tokens),
    }.items():
        setattr(metadata, name, value)
    return metadata


def _sampler(subject: Subject, world: World, parameters: dict[str, Any]) -> Layer:
    if "sampler" in subject.left_out:
        raise NotApplicable(
            "the tree keeps upstream's sampler, and the handler keeps its deterministic server "
            f"off the Ascend path (seam sampler: {subject.left_out['sampler']})"
        )
    module: Any = world.module(SAMPLER)
    with world.execution:
        sampler = module.Sampler()

    def run(rows: Sequence[int]) -> list[torch.Tensor]:
        requests = [
            Request(random_logits(row, 64), seed=row, position=row, temperature=0.9, **parameters)
            for row in rows
        ]
        info = sampling_info(requests)
        for name, value in vars(info).items():
            if isinstance(value, torch.Tensor):
                setattr(info, name, npu(value))
        info.device = "npu"
        logits = npu(torch.stack([request.logits for request in requests]))
        output = SimpleNamespace(next_token_logits=logits)
        positions = npu(torch.tensor([request.position for request in requests]))
        count = len(rows)
        tokens = sampler(output, info, True, [0] * count, [None] * count, positions)
        pairs = zip(cpu(tokens).tolist(), cpu(output.next_token_logprobs), strict=True)
        return [torch.stack([torch.tensor(float(token)), value.float()]) for token, value in pairs]

    return run


def _hash(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return npu(murmur_hash32(*map(cpu, (seeds, positions, columns))))


def _only_read(subject: Subject, why: str, flags: dict[str, bool], part: str = "") -> None:
    """Say which operators of torch_npu a path calls that is not executed here."""
    world = _world(subject.package, subject.torch_npu)
    file = next(filter(None, map(world.execution.file, ATTENTION)), None)
    if file is None:
        raise NotApplicable(f"the tree has no {' or '.join(ATTENTION)}")
    path = file.relative_to(world.package).as_posix()
    found: dict[str, int] = {}
    for function in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(function, ast.FunctionDef) and function.name in _FORWARDS:
            for name, line in _npu_calls(function, flags, bool(flags)):
                if part in name:
                    found.setdefault(name, line)
    if not found:
        raise NotApplicable(f"the tree has no path for {why}")
    replaced = [name for name in found if _is_rebound(world, name)]
    native = [f"{name} ({path}:{line})" for name, line in found.items() if name not in replaced]
    raise NotApplicable(
        f"not promised: {why} is read and not executed; "
        f"replaced: {', '.join(replaced) or 'none'}; native: {', '.join(native) or 'none'}"
    )


_FORWARDS = ("forward_extend", "forward_decode")


def _npu_calls(
    node: ast.AST, flags: Mapping[str, bool], elsewhere: bool
) -> Iterator[tuple[str, int]]:
    """Give torch_npu's operators that are called where the flags have those values.

    `elsewhere` is true until a test of the first flag has been passed, and calls do not count.
    """
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        flag = next((f for f in flags if test.removeprefix("not ").startswith(f)), None)
        if flag is not None:
            holds = flags[flag] is not test.startswith("not ")
            taken = node.body if holds else node.orelse
            # More than the flag may be asked for, and then the other branch is taken too.
            more = test.removeprefix("not ") != flag and holds
            passed = elsewhere and flag != next(iter(flags))
            for child in [*taken, *(node.orelse if more else ())]:
                yield from _npu_calls(child, flags, passed)
            return
    if isinstance(node, ast.Call) and not elsewhere:
        name = ast.unparse(node.func)
        if name.startswith(("torch_npu.", "torch.ops.npu.")):
            yield name, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _npu_calls(child, flags, elsewhere)


def _is_rebound(world: World, name: str) -> bool:
    """Tell whether that name is another operator now than torch_npu's own."""
    scope, _, operator = name.rpartition(".")
    namespace: Any = torch.ops.npu if scope.startswith("torch.ops") else world.torch_npu
    if scope not in ("torch.ops.npu", "torch_npu"):
        return False
    found = vars(namespace).get(operator)
    own = f"{torch_npu.NAMESPACE}::{operator}"
    return found is not None and getattr(found, "_qualified_op_name", "") != own


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


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return npu(_random(*shape, seed=9000 + sum(shape)).to(dtype))


def _bases(package: Path) -> dict[str, dict[str, object]]:
    """Give the classes that the tree's norms derive from as plain modules."""
    file = package.joinpath(*NORM.split(".")[1:]).with_suffix(".py")
    if not file.is_file():
        return {}
    tree = ast.parse(file.read_bytes())
    bases = {
        base.id
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    found: dict[str, dict[str, object]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name in bases:
                    found.setdefault(node.module, {})[alias.name] = nn.Module
    return found
