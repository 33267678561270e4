"""Draw tokens by seed and position, each row as if it were alone in its batch.

A row keeps the tokens that its own top-k, top-p and min-p keep, and the one with the
largest logarithm of its probability plus Gumbel noise is drawn, which follows the
distribution. The noise is hashed from seed, position and token id, never from a rank.
What is computed of a row is computed element by element, or by a sort or a comparison,
so that no kernel can let other rows into it. Used on an NPU with seeds only; imports
nothing of torch_npu.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def draw(
    probs: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Return a token of each row, drawn by weights that need not add up to 1."""
    columns = torch.arange(probs.shape[-1], device=probs.device)
    hashed = murmur_hash32(seeds, positions, columns)
    uniform = hashed.to(torch.float64) / _MASK
    # The largest hash would give infinite noise, and a filtered token would win.
    uniform.clamp_(max=1.0 - 2.0**-32)
    noise = uniform.log_().clamp_(min=torch.finfo(torch.float64).min).neg_()
    noise.log_().neg_()
    noise.add_(probs.to(torch.float64).log_())
    return torch.argmax(noise, dim=-1).to(torch.int32)


def draw_filtered(
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    return_filtered_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return a token of each row, drawn from what its own parameters keep.

    If asked, also return the weights that are kept, by rank, with the token of each
    rank, and the weights of the tokens drawn.
    """
    ranked, order = _ranked(probs, top_ks, top_ps, min_ps)
    weights = torch.zeros_like(ranked).scatter_(-1, order, ranked)
    tokens = draw(weights, seeds, positions)
    if not return_filtered_probs:
        return tokens
    drawn = weights.gather(-1, tokens.to(torch.int64).view(-1, 1)).view(-1)
    return tokens, ranked, order.to(torch.int32), drawn


def murmur_hash32(
    seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Hash each pair of a row and a column to 32 bits, as int64 of that shape.

    MurmurHash3 over seed (low word, high word), position and column, as SGLang has it
    for other devices, so that the sampling backends agree. Nothing exceeds 49 bits.
    """
    seeds = seeds.to(torch.int64)
    state = torch.zeros_like(seeds)
    for block in (seeds, seeds >> 32, positions.to(torch.int64)):
        state = _mixed(state, block & _MASK)
    state = _mixed(state.view(-1, 1), (columns.to(torch.int64) & _MASK).view(1, -1))
    state = state ^ 16
    state = _times(state ^ (state >> 16), 0x85EBCA6B)
    state = _times(state ^ (state >> 13), 0xC2B2AE35)
    return state ^ (state >> 16)


def _mixed(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _times(_rotated(_times(block, 0xCC9E2D51), 15), 0x1B873593)
    return (_rotated(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _times(value: torch.Tensor, factor: int) -> torch.Tensor:
    high = (value * (factor >> 16)) & 0xFFFF
    return ((high << 16) + value * (factor & 0xFFFF)) & _MASK


def _rotated(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _ranked(
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is kept of each row by rank, 0 for the rest, and each rank's token.

    Of tied tokens the one with the lower id comes first.
    """
    ranked, order = torch.sort(probs.float(), dim=-1, descending=True, stable=True)
    before = _running_sums(ranked) - ranked
    # Rounding of the sum must not cut the tail of a row without top-p.
    nucleus = top_ps.masked_fill(top_ps >= 1.0, float("inf")).view(-1, 1)
    least = ranked[:, :1] * min_ps.view(-1, 1)
    ranks = torch.arange(probs.shape[-1], device=probs.device).view(1, -1)
    cut = (ranks >= top_ks.view(-1, 1)) | (before > nucleus) | (ranked < least)
    return ranked.masked_fill(cut, 0.0), order


def _running_sums(values: torch.Tensor) -> torch.Tensor:
    """Add up each row by additions of elements, whose order no kernel chooses."""
    sums, step = values, 1
    while step < values.shape[-1]:
        moved = sums[:, step:] + sums[:, :-step]
        sums, step = torch.cat([sums[:, :step], moved], dim=-1), 2 * step
    return sums
