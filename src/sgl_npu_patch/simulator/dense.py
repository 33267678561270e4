"""Operators of dense models beside those that the patch replaces: rotation, cache, activation.

Each works row by row and adds nothing up, so that no batch shows in its bits. What an option would
change and is not simulated is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_npu_patch.simulator.device import cpu, npu


def rotate(
    heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """Rotate CPU tensors: heads are (tokens, heads, width), cos and sin (tokens, width / 2)."""
    cos, sin = cos[:, None].float(), sin[:, None].float()
    wide = heads.float()
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
    turned = first * cos - second * sin, second * cos + first * sin
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return joined.to(heads.dtype)


def refuse(operator: str, **options: Any) -> None:
    """Raise NotImplementedError if any of these options is set."""
    for name, value in options.items():
        if isinstance(value, torch.Tensor) or value:
            raise NotImplementedError(f"the simulated {operator} takes no {name}={value!r}")


def _mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, ...]:
    axes = [section for section in mrope_section or () if section]
    refuse("npu_mrope", mrope_section=axes, cache_mode=cache_mode != "default" and cache_mode)
    table = cpu(cos_sin_cache)[cpu(positions).long().flatten()]
    cos, sin = table.chunk(2, -1)
    width = table.shape[-1]

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        host = cpu(tensor)
        heads = host.reshape(host.shape[0], -1, head_size)
        first = rotate(heads[..., :width], cos, sin, interleaved=rotary_mode == "interleave")
        return npu(torch.cat((first, heads[..., width:]), -1).reshape(host.shape))

    return turned(query), turned(key)


def _rotary_mul(
    tensor: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    refuse("npu_rotary_mul", rotary_mode=rotary_mode != "half" and rotary_mode)
    refuse("npu_rotary_mul", rotate=rotate is not None)
    host, cos, sin = (cpu(each).float() for each in (tensor, r1, r2))
    first, second = host.chunk(2, -1)
    return npu((host * cos + torch.cat((-second, first), -1) * sin).to(tensor.dtype))


def _swiglu(tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, up = cpu(tensor).float().chunk(2, dim)
    return npu((torch.nn.functional.silu(gate) * up).to(tensor.dtype))


def _scatter_nd_update(
    target: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    host, rows = cpu(target), cpu(indices).long()
    if rows.shape[-1] != 1:
        raise NotImplementedError("the simulated npu_scatter_nd_update_ takes one index a row")
    host[rows[..., 0]] = cpu(updates).to(host.dtype)
    return target


def _reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    slots = cpu(slot_indices).long()
    for given, cache in ((key, key_cache), (value, value_cache)):
        host = cpu(cache)
        rows = host.view(-1, *host.shape[2:])
        rows[slots] = cpu(given).reshape(slots.numel(), *host.shape[2:]).to(host.dtype)


def _format_cast(
    tensor: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """Copy: how the device lays memory out shows in no value."""
    refuse("npu_format_cast", customize_dtype=customize_dtype, input_dtype=input_dtype)
    return npu(cpu(tensor).clone())


KERNELS: dict[str, Callable[..., Any]] = {
    "_npu_reshape_and_cache": _reshape_and_cache,
    "npu_format_cast": _format_cast,
    "npu_mrope": _mrope,
    "npu_rotary_mul": _rotary_mul,
    "npu_scatter_nd_update_": _scatter_nd_update,
    "npu_swiglu": _swiglu,
}
"""To be installed with `torch_npu.install`."""
