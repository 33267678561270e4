"""The layers that are run: each computes a batch of numbered rows."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from sgl_npu_patch.codemods.upstream.symbols import ASCEND
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.stubs import Stub
from sgl_npu_patch.verify.behaviour import Subject
from sgl_npu_patch.verify.behaviour.layers.world import (
    ATTENTION,
    LINEAR,
    NORM,
    Layer,
    World,
)
from sgl_npu_patch.verify.behaviour.sampler_machine import Request, random_logits, sampling_info
from sgl_npu_patch.verify.findings import NotApplicable

_WIDTH = 24


def linear(world: World, *, bias: bool) -> Layer:
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


def norm(world: World, name: str, *, residual: bool) -> Layer:
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


def attention(world: World, *, decode: bool, fia: bool) -> Layer:
    module: Any = world.module(ATTENTION)
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


def sampler(
    subject: Subject, world: World, parameters: dict[str, Any], backend: str = ASCEND
) -> Layer:
    on_ascend = backend == ASCEND
    if on_ascend and "sampler" in subject.left_out:
        raise NotApplicable(
            "the tree keeps upstream's sampler, and the handler keeps its deterministic server "
            f"off the Ascend path (seam sampler: {subject.left_out['sampler']})"
        )

    def run(rows: Sequence[int]) -> list[torch.Tensor]:
        sampler = world.sampler(backend)
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
        tokens = sampler(output, info, on_ascend, [0] * count, [None] * count, positions)
        if not on_ascend:
            # What is logged is another formula if all requests are greedy.
            return [*cpu(tokens)]
        pairs = zip(cpu(tokens).tolist(), cpu(output.next_token_logprobs), strict=True)
        return [torch.stack([torch.tensor(float(token)), value.float()]) for token, value in pairs]

    return run


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return npu(_random(*shape, seed=9000 + sum(shape)).to(dtype))
