"""Kernels of sgl_kernel_npu that models use; all its other parts raise by name.

It is on no index, so that what it takes is known from its callers in SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_npu_patch.simulator.dense import rotate
from sgl_npu_patch.simulator.device import cpu, npu, tell
from sgl_npu_patch.simulator.latent import OF_SGL_KERNEL_NPU
from sgl_npu_patch.simulator.unsimulated import Parts

PACKAGE = "sgl_kernel_npu"


class Kernel:
    """A plain function that is called as a kernel of Triton is: `kernel[grid](...)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function


def _alloc_extend(
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    *constants: int,
) -> None:
    """Give each sequence slots: the rest of its last page, then whole free pages.

    The constants are the rounded size of the batch, the size of a page, the most new tokens.
    """
    page_size = constants[1]
    before, after, last = (cpu(each).tolist() for each in (pre_lens, seq_lens, last_loc))
    pages, out = cpu(free_pages).long(), cpu(out_indices)
    start = page = 0
    for had, wanted, slot in zip(before, after, last, strict=True):
        count = wanted - had
        room = min(count, -had % page_size)
        used = -(-(count - room) // page_size)
        new = pages[page : page + used, None] * page_size + torch.arange(page_size)
        slots = torch.cat((torch.arange(slot + 1, slot + 1 + room), new.flatten()))[:count]
        out[start : start + count] = slots.to(out.dtype)
        start, page = start + count, page + used
    tell(f"{PACKAGE}::alloc_extend", (), {}, None)


def _alloc_extend_operator(
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
    out_indices: torch.Tensor,
    num_new_pages: torch.Tensor,
) -> None:
    _alloc_extend(pre_lens, seq_lens, last_loc, free_pages, out_indices, 0, page_size)


def install_operators() -> None:
    """Register the operators that importing the package adds; SGLang 0.5.3 calls the first."""
    if hasattr(torch.ops.npu, "alloc_extend"):
        return
    for name, (schema, kernel) in OF_SGL_KERNEL_NPU.items():
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, kernel, "PrivateUse1")
    _LIBRARY.define(
        "alloc_extend(Tensor pre_lens, Tensor seq_lens, Tensor last_loc, Tensor free_pages, "
        "int pages_size, Tensor(a!) out_indices, Tensor num_new_pages) -> ()"
    )
    _LIBRARY.impl("alloc_extend", _alloc_extend_operator, "CompositeExplicitAutograd")


_new_library: Callable[[str, str], Any] = torch.library.Library
_LIBRARY = _new_library("npu", "FRAGMENT")


def _split_qkv_rmsnorm_rope(*arguments: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    if len(arguments) > 3 and isinstance(arguments[3], torch.Tensor):
        # Before its weights could be left out they stood in front of the sizes.
        named |= {"q_weight": arguments[3], "k_weight": arguments[4]}
        arguments = (*arguments[:3], *arguments[5:])
    return _split_norm_rope(*arguments, **named)


def _split_norm_rope(
    qkv: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    q_size: int,
    kv_size: int,
    head_dim: int,
    eps: float | None = None,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    q_bias: torch.Tensor | None = None,
    k_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    host = cpu(qkv)
    query, key, value = torch.split(host, [q_size, kv_size, kv_size], -1)
    halves = [cpu(each).reshape(host.shape[0], -1)[:, : head_dim // 2] for each in (cos, sin)]

    def turned(
        tensor: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        heads = tensor.reshape(host.shape[0], -1, head_dim)
        if weight is not None:
            assert eps is not None
            heads = _normed(heads, cpu(weight), None if bias is None else cpu(bias), eps)
        return npu(rotate(heads, *halves, interleaved=False).reshape(tensor.shape))

    found = turned(query, q_weight, q_bias), turned(key, k_weight, k_bias), npu(value.contiguous())
    tell(f"{PACKAGE}::split_qkv_rmsnorm_rope", (), {}, found)
    return found


def _normed(
    heads: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    wide = heads.double()
    means = torch.stack([token.clone().square().mean(-1) for token in wide])
    normed = wide * (means + epsilon).rsqrt()[..., None] * weight.double()
    return (normed if bias is None else normed + bias.double()).to(heads.dtype)


def _fused_rope_qk_mqa(
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin: torch.Tensor,
    rotary_dim: int,
    is_neox_style: bool,
) -> tuple[torch.Tensor, ...]:
    cos, sin = cpu(cos_sin).chunk(2, -1)

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        host = cpu(tensor)
        first = rotate(host[..., :rotary_dim], cos, sin, interleaved=not is_neox_style)
        return npu(torch.cat((first, host[..., rotary_dim:]), -1))

    found = turned(query), turned(key)
    tell(f"{PACKAGE}::fused_rope_qk_mqa", (), {}, found)
    return found


def _l1_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Divide each row by the sum of its elements' sizes."""
    host = cpu(tensor).double()
    normed = npu((host / host.abs().sum(-1, keepdim=True)).to(tensor.dtype))
    tell(f"{PACKAGE}::l1_norm", (), {}, normed)
    return normed


PARTS: Parts = {
    f"{PACKAGE}.mem_cache.allocator": {"alloc_extend_kernel": Kernel(_alloc_extend)},
    f"{PACKAGE}.norm.fused_rope_qk_mqa": {"fused_rope_qk_mqa": _fused_rope_qk_mqa},
    f"{PACKAGE}.norm.l1_norm": {"l1_norm": _l1_norm},
    f"{PACKAGE}.norm.split_qkv_rmsnorm_rope": {"split_qkv_rmsnorm_rope": _split_qkv_rmsnorm_rope},
}
