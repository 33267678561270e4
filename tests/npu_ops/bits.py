"""Compare tensors by their bits."""

from __future__ import annotations

import torch

from sgl_npu_patch.simulator import device

_INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two npu tensors have one dtype, one shape and the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    a, b = device.cpu(one), device.cpu(other)
    return torch.equal(a.view(_INTEGERS[a.dtype]), b.view(_INTEGERS[b.dtype]))


def on_npu(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return a reproducible normal npu tensor."""
    generator = torch.Generator().manual_seed(seed)
    return device.npu(torch.randn(shape, generator=generator).to(dtype))
