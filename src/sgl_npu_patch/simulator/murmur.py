"""Hash as SGLang's Triton kernel `murmur_hash32` does, on a CPU."""

from __future__ import annotations

import torch

_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """Hash as SGLang's Triton kernel of that name does, on a CPU.

    MurmurHash3_x86_32 over seed (low word, high word), position and column, from 0. Takes `seed`
    and `positions` of shape (n,), `col_indices` of shape (m,); returns uint32 of shape (n, m).
    """
    if seed.shape != positions.shape or seed.dim() != 1 or col_indices.dim() != 1:
        raise ValueError(f"{seed.shape=} {positions.shape=} {col_indices.shape=}")
    words = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.long()
    low, high = words & _MASK, (words >> 32) & _MASK
    rows = torch.stack([low, high, positions.long() & _MASK])[:, :, None]
    state = torch.zeros_like(rows[0])
    for block in (*rows, (col_indices.long() & _MASK)[None, :]):
        state = _mix(state, block)
    state = state ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _multiply(_rotate(_multiply(block, _C1), 15), _C2)
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _multiply(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Multiply modulo 2**32, in halves of `factor`: the whole product is too long for int64."""
    high = (value * (factor >> 16)) & 0xFFFF
    return ((high << 16) + value * (factor & 0xFFFF)) & _MASK


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
