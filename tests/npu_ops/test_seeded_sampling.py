"""seeded_sampling draws each row by its own parameters, from the distribution they leave."""

from __future__ import annotations

from typing import Any

import torch

from sgl_npu_patch.npu_ops import seeded_sampling
from sgl_npu_patch.simulator import device, murmur
from sgl_npu_patch.simulator.device import cpu, npu

WIDTH = 50
NO_TOP_K = 1 << 30
draw_filtered: Any = seeded_sampling.draw_filtered
"""Called with its arguments in one tuple."""


def probabilities(rows: int, width: int = WIDTH) -> torch.Tensor:
    logits = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
    return torch.softmax(2 * logits, dim=-1)


def filters(
    rows: int, top_k: int = NO_TOP_K, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    )


def drawn(probs: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(len(probs))
    tokens = draw_filtered(probs, *given, rows * 7, rows)
    assert isinstance(tokens, torch.Tensor)
    return tokens


def test_hashes_are_those_of_sglang() -> None:
    seeds = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**63 - 1, -1])
    positions = torch.tensor([0, 5, 2**31 - 1, 7, 100_000, 3], dtype=torch.int32)
    columns = torch.arange(2000)
    expected = murmur.murmur_hash32(seeds, positions, columns).to(torch.int64)
    assert torch.equal(seeded_sampling.murmur_hash32(seeds, positions, columns), expected)


def test_nothing_filtered_is_drawn_as_by_the_simple_draw() -> None:
    probs, rows = probabilities(64), torch.arange(64)
    simple = seeded_sampling.draw(probs, rows * 7, rows)
    assert simple.dtype == torch.int32
    assert torch.equal(drawn(probs, *filters(64)), simple)


def test_a_top_k_of_one_takes_the_first_of_ties() -> None:
    probs = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.25, 0.25, 0.25, 0.25]])
    assert drawn(probs, *filters(2, top_k=1)).tolist() == [1, 0]


def test_details_are_of_the_tokens_drawn() -> None:
    probs, rows = probabilities(20), torch.arange(20)
    given = filters(20, 10, 0.8, 0.05)
    details = draw_filtered(probs, *given, rows, rows, return_filtered_probs=True)
    assert isinstance(details, tuple)
    tokens, weights, order, weight = details
    assert torch.equal(tokens, draw_filtered(probs, *given, rows, rows))
    assert order.dtype == torch.int32
    assert torch.equal(weight, probs.gather(1, tokens.long()[:, None])[:, 0])
    kept = probs.gather(1, order.long())
    assert torch.equal(weights, torch.where(weights > 0, kept, 0.0))
    assert (weights > 0).sum(-1).max() <= 10


def test_each_row_is_filtered_by_its_own_parameters() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).repeat(5, 1)
    rows = torch.zeros(5, dtype=torch.int64)
    top_ks = torch.tensor([NO_TOP_K, 2, NO_TOP_K, NO_TOP_K, 4], dtype=torch.int32)
    top_ps = torch.tensor([1.0, 1.0, 0.6, 1.0, 0.9])
    min_ps = torch.tensor([0.0, 0.0, 0.0, 0.25, 0.35])
    _, weights, _, _ = draw_filtered(
        probs, top_ks, top_ps, min_ps, rows, rows, return_filtered_probs=True
    )
    assert (weights > 0).sum(-1).tolist() == [5, 2, 2, 3, 2]


def test_no_kernel_lets_other_rows_in() -> None:
    probs, rows = probabilities(9, 3000), torch.arange(9)
    given = (*filters(9, 500, 0.9, 0.0001), rows * 7, rows)
    device.install()
    with device.adversarial():
        together = draw_filtered(npu(probs), *map(npu, given), return_filtered_probs=True)
        for row in range(9):
            alone = draw_filtered(
                npu(probs[row : row + 1]),
                *(npu(each[row : row + 1]) for each in given),
                return_filtered_probs=True,
            )
            for one, all_rows in zip(alone, together, strict=True):
                assert torch.equal(cpu(one)[0], cpu(all_rows)[row])


def test_probabilities_are_left_as_they_are() -> None:
    probs = probabilities(4)
    before = probs.clone()
    drawn(probs, *filters(4, 3, 0.5, 0.1))
    seeded_sampling.draw(probs, torch.arange(4), torch.arange(4))
    assert torch.equal(probs, before)
