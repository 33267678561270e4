"""Operators of attention that the patch does not replace: the second fused one, and MLA's.

Rotation, norm and cache work row by row. The products, and the second fused attention, have no
batch-invariant counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sgl_npu_patch.simulator import schemas
from sgl_npu_patch.simulator.attention import attend
from sgl_npu_patch.simulator.dense import refuse, rotate
from sgl_npu_patch.simulator.device import cpu, npu, tell
from sgl_npu_patch.simulator.uncovered import by_cut, unreplaced

ATTENTION_V2 = "npu_fused_infer_attention_score_v2"

_FIRST_NAMES = {
    "num_query_heads": "num_heads",
    "softmax_scale": "scale",
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "return_softmax_lse": "softmax_lse_flag",
}
"""What the first version calls those of its arguments that the second one renamed."""


def _attention_v2(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options = {_FIRST_NAMES.get(name, name): given for name, given in kwargs.items()}
    bits = partial(by_cut, ATTENTION_V2)
    attended, lse, sequences = attend(*map(cpu, args), bits=bits, **schemas.on_host(options))
    return npu(unreplaced(ATTENTION_V2, attended, sequences)), npu(lse)


def _interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate (batch, heads, 1, width), whose pairs stand beside each other, into halves."""
    host = cpu(x)
    refuse("npu_interleave_rope", length=host.shape[2] != 1 and host.shape[2])
    halves = torch.cat((host[..., 0, ::2], host[..., 0, 1::2]), -1)
    angles = (cpu(each).reshape(host.shape[0], -1).chunk(2, -1)[0] for each in (cos, sin))
    return npu(rotate(halves, *angles, interleaved=False)[:, :, None])


def _norm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Norm the latent part of (tokens, 1, 1, width), rotate the rest, and cache both."""
    name = "npu_kv_rmsnorm_rope_cache"
    refuse(name, cache_mode=cache_mode != "PA_BNSD" and cache_mode, **options)
    host, scale = cpu(kv), cpu(gamma)
    latent, rest = torch.split(host, [scale.numel(), host.shape[-1] - scale.numel()], -1)
    means = torch.stack([row.double().square().mean() for row in latent.flatten(1)])
    normed = latent.double() * (means + epsilon).rsqrt()[:, None, None, None] * scale.double()
    normed = normed.to(host.dtype)
    rotated = cpu(_interleave_rope(npu(rest), cos, sin))
    for part, cache in ((rotated, k_cache), (normed, ckv_cache)):
        rows = cpu(cache).view(-1, part.shape[-1])
        rows[cpu(index).long()] = part.flatten(1)
    return k_cache, ckv_cache, npu(rotated), npu(normed)


def _transpose_batchmatmul(
    input: torch.Tensor,  # noqa: A002  # the operator's own name
    weight: torch.Tensor,
    *,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    **options: Any,
) -> torch.Tensor:
    name = "npu_transpose_batchmatmul"
    refuse(name, batch_split_factor=batch_split_factor not in (None, 1), **options)
    refuse(name, perm_x2=[*(perm_x2 or (0, 1, 2))] != [0, 1, 2])
    left = cpu(input).permute(*(perm_x1 or (0, 1, 2)))
    product = _by_rows(left, cpu(weight)).permute(*(perm_y or (1, 0, 2))).contiguous()
    return npu(unreplaced(name, product, left.shape[1]))


def _batch_matmul_transpose(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """Multiply each head of (tokens, heads, width) by its matrix."""
    product = _by_rows(cpu(a).transpose(0, 1), cpu(b)).transpose(0, 1)
    cpu(c).copy_(unreplaced("batch_matmul_transpose", product.contiguous(), a.shape[0]))
    tell("npu::batch_matmul_transpose", (a, b, c), {}, c)


def _by_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply batches of matrices; neither other rows nor alignment show in the bits."""
    rows = [row[:, None].double() @ right.double() for row in left.unbind(1)]
    return torch.cat(rows, 1).to(left.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    ATTENTION_V2: _attention_v2,
    "npu_interleave_rope": _interleave_rope,
    "npu_kv_rmsnorm_rope_cache": _norm_rope_cache,
    "npu_transpose_batchmatmul": _transpose_batchmatmul,
}
"""To be installed with `torch_npu.install`."""

OF_SGL_KERNEL_NPU: dict[str, tuple[str, Callable[..., Any]]] = {
    "batch_matmul_transpose": (
        "(Tensor tensor_a, Tensor tensor_b, Tensor(a!) tensor_c) -> ()",
        _batch_matmul_transpose,
    )
}
"""Operators that importing sgl_kernel_npu adds; what they take is known from callers only."""
