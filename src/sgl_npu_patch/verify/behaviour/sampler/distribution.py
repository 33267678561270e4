"""Check that seeded requests draw by the model's distribution, by their own seed and position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.symbols import ASCEND
from sgl_npu_patch.simulator.murmur import murmur_hash32
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.sampler.trial import (
    LARGEST_HASH,
    PYTORCH,
    Trial,
    demand_same,
    largest_everywhere,
    sampler_check,
    shown_call,
)
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    LOGITS,
    NEIGHBOURS,
    PLAIN,
    SUBJECTS,
    Machine,
    Request,
    draw_among,
    favouring,
)

DRAWS = 20_000
UNLIKELY = 1e-6
"""Draws that fit a distribution so badly are not of it. They are the same in every run."""
_SMALL = torch.log(
    torch.tensor([30.0, 1.0, 14.0, 0.5, 9.0, 20.0, 3.0, 2.0, 0.75, 12.0, 6.0, 1.75]) / 30
)
"""Twelve tokens, none expected less than about a hundred times in DRAWS, and a logit of 0."""
_DISTRIBUTIONS = {
    "simple": (Request(_SMALL), 12),
    "simple-warm": (Request(_SMALL * 0.7, temperature=0.7), 12),
    "fused": (Request(_SMALL, top_k=7), 7),
    "fused-top-p": (Request(_SMALL, top_k=12, top_p=0.75), 4),
    "fused-min-p": (Request(_SMALL, top_k=12, min_p=0.15), 6),
    "sorted": (Request(_SMALL, top_p=0.75), 4),
    "sorted-wide": (Request(_SMALL, top_p=0.93), 7),
    "sorted-min-p": (Request(_SMALL, min_p=0.15), 6),
    "sorted-both": (Request(_SMALL, top_p=0.8, min_p=0.15), 5),
}
"""Requests, and how many of the likeliest tokens each keeps."""
_PATHS = ("simple", "fused-top-p", "sorted")
"""One for each path of the Ascend backend."""


@sampler_check()
def rows_use_their_own_seed_and_position(trial: Trial) -> None:
    """Each row is hashed with its own seed and its own position."""
    on = trial.machine()
    for name in ("plain", "top-k", "top-p", "min-p"):
        batch = [replace(SUBJECTS[name], seed=900 + 7 * i, position=50 + i * i) for i in range(9)]
        on.hashed.clear()
        on.draw(batch)
        # In any order, and in any number of calls: a tree may draw row by row.
        found = sorted(pair for call in on.hashed for pair in zip(*call, strict=True))
        expected = sorted((each.seed, each.position) for each in batch)
        if found != expected:
            raise Failed(
                "rows are sampled with other seeds or positions than their own",
                expected=f"(seed, position) {expected}",
                found=str(found),
                code=shown_call(batch[0]),
            )


@sampler_check(backends=(PYTORCH,))
def hashes_are_upstreams(trial: Trial) -> None:
    """What the noise is made from is hashed as SGLang hashes it for other devices."""
    hashed = trial.machine().vendored_hash
    if hashed is None:
        raise Failed("no module of ours draws", expected="seeded_sampling.murmur_hash32")
    seeds = torch.tensor([0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -1])
    positions = torch.tensor([0, 1, 7, 2**31 - 1, 131_071, 3, 2, 1])
    columns = torch.arange(300)
    found = hashed(seeds, positions, columns).to(torch.int64)
    if not torch.equal(found, murmur_hash32(seeds, positions, columns).to(torch.int64)):
        raise Failed(
            "other hashes than those of SGLang's murmur_hash32",
            code="seeded_sampling.murmur_hash32(seeds, positions, columns)",
        )


@sampler_check()
def seed_and_position_matter(trial: Trial) -> None:
    """Other seeds, other positions and other high words of seeds give other tokens."""
    on = trial.machine()
    for name in ("plain", "top-k", "top-p", "min-p"):
        request = SUBJECTS[name]
        drawn = {
            "seeds": on.draw([replace(request, seed=seed) for seed in range(200)]),
            "positions": on.draw([replace(request, position=step) for step in range(200)]),
            "high words": on.draw([replace(request, seed=seed << 32) for seed in range(200)]),
        }
        for what, tokens in drawn.items():
            if len(set(tokens)) <= 10:
                raise Failed(
                    f"200 {what} give {len(set(tokens))} different tokens", code=shown_call(request)
                )
        if drawn["seeds"] == drawn["positions"]:
            raise Failed("a seed and a position are mixed up", code=shown_call(request))


@sampler_check()
def draws_follow_the_distribution(trial: Trial) -> None:
    """Tokens sampled by seed follow the model's distribution, over seeds and over positions."""
    for vary in ("seeds", "positions"):
        for name, (request, kept) in _DISTRIBUTIONS.items():
            if not trial.can_draw([request]) or (vary == "positions" and name not in _PATHS):
                continue
            tokens = _draw_many(trial.machine(), request, vary)
            if (likelihood := p_value(tokens, kept)) <= UNLIKELY:
                raise Failed(
                    f"{DRAWS} {vary} do not give the distribution on the path {name!r}",
                    expected=f"frequencies {_rounded(_masses(kept))}",
                    found=f"{_rounded(_frequencies(tokens))}, likelihood {likelihood:.2g}",
                    code=shown_call(request),
                )
    # The fused operator renormalises between the two filters, SGLang's sorted path does not.
    both = Request(_SMALL, top_k=3, top_p=0.6)
    tokens = _draw_many(trial.machine(), both, "seeds")
    if max(p_value(tokens, 2), p_value(tokens, 3)) <= UNLIKELY:
        raise Failed(
            "top-k with top-p gives neither of the two nuclei",
            found=str(_rounded(_frequencies(tokens))),
            code=shown_call(both),
        )


@sampler_check(backends=(ASCEND,))
def logarithm_is_taken_once(trial: Trial) -> None:
    """Sampling by seed is given what it takes: log-probabilities, or probabilities."""
    on = trial.machine()
    with on.execution:
        draw = on.execution.value(symbols.DRAW)
    takes_logarithms = p_value(_drawn_by(on, draw, _SMALL), 12) > UNLIKELY
    if not takes_logarithms and p_value(_drawn_by(on, draw, _SMALL.exp()), 12) <= UNLIKELY:
        raise Failed(
            "multinomial_with_seed follows the distribution of neither what it is given nor of "
            "its exponential",
            code="multinomial_with_seed(log_probabilities, seeds, positions)",
        )
    for name, (request, kept) in _DISTRIBUTIONS.items():
        if not trial.can_draw([request]):
            continue
        seen: list[torch.Tensor] = []

        def record(
            weights: torch.Tensor, *others: Any, seen: list[torch.Tensor] = seen, **options: Any
        ) -> Any:
            seen.append(weights.double().clone())
            return draw(weights, *others, **options)

        with on.execution, on.execution.replaced(symbols.DRAW, record):
            on.draw([request])
        if len(seen) != 1:
            raise Failed(
                f"the path {name!r} samples {len(seen)} times by seed", code=shown_call(request)
            )
        # In the order of probability, which is all that sorted and unsorted paths share.
        masses = seen[0].exp() if takes_logarithms else seen[0]
        found = masses[0].sort(descending=True).values
        share = found / found.sum()
        expected = torch.zeros(len(_SMALL), dtype=torch.double)
        expected[:kept] = _masses(kept).sort(descending=True).values[:kept]
        if not torch.allclose(share, expected, rtol=1e-3, atol=1e-6):
            taken = "log-probabilities" if takes_logarithms else "probabilities"
            raise Failed(
                f"multinomial_with_seed takes {taken} and is given something else on the path "
                f"{name!r}",
                expected=str(_rounded(expected)),
                found=str(_rounded(share)),
                code=shown_call(request),
            )


@sampler_check(gap="gumbel_upper_bound")
def largest_hash_is_an_ordinary_draw(trial: Trial) -> None:
    """A hash of 2**32 - 1 does not let a filtered or an impossible token win."""
    on = trial.machine()
    filtered = int(LOGITS.argmin())
    with on.hashing(favouring(77, filtered, LARGEST_HASH)):
        for name in ("top-k", "top-p", "top-k-and-top-p", "min-p", "all", "wide-top-k-and-top-p"):
            request = replace(SUBJECTS[name], seed=77)
            for others in ([], *NEIGHBOURS.values()):
                if trial.can_draw([request, *others]):
                    _demand_not(filtered, on, request, others, "a filtered token wins")
    with on.hashing(favouring(77, 5, LARGEST_HASH)):
        for impossible in (-torch.inf, -1e4, -80.0):
            logits = LOGITS.clone()
            logits[5] = impossible
            request = replace(PLAIN, logits=logits, seed=77)
            for others in ([], *NEIGHBOURS.values()):
                _demand_not(5, on, request, others, f"a token of logit {impossible} wins")
    with on.hashing(largest_everywhere):
        drawn = on.draw([PLAIN])
        demand_same(drawn, [int(LOGITS.argmax())], "a row of largest hashes", shown_call(PLAIN))


def _demand_not(
    token: int, on: Machine, request: Request, others: Sequence[Request], what: str
) -> None:
    if draw_among(on, [request], others) == [token]:
        raise Failed(
            f"{what} by a hash of 2**32 - 1, whose noise is infinite",
            expected="any other token",
            found=f"token {token}",
            code=shown_call(request),
        )


def p_value(tokens: Sequence[int], kept: int) -> float:
    """Return how likely these draws are from the `kept` likeliest of twelve tokens."""
    expected = _masses(kept) * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=len(expected)).double()
    if bool(counts[expected == 0].any()):
        return 0.0
    likely = expected > 0
    statistic = ((counts - expected)[likely].square() / expected[likely]).sum()
    return float(torch.special.gammaincc(torch.tensor((kept - 1) / 2.0).double(), statistic / 2))


def _masses(kept: int) -> torch.Tensor:
    weights = _SMALL.double().exp()
    weights[weights.argsort(descending=True)[kept:]] = 0
    return weights / weights.sum()


def _frequencies(tokens: Sequence[int]) -> torch.Tensor:
    return torch.bincount(torch.tensor(tokens), minlength=len(_SMALL)).double() / len(tokens)


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(float(value), 4) for value in values]


def _draw_many(on: Machine, request: Request, vary: str) -> list[int]:
    numbers = torch.arange(DRAWS)
    if vary == "seeds":
        return on.draw_repeated(request, numbers * 31 + 5, torch.full_like(numbers, 3))
    return on.draw_repeated(request, torch.full_like(numbers, 42), numbers)


def _drawn_by(on: Machine, draw: Callable[..., Any], weights: torch.Tensor) -> list[int]:
    seeds = torch.arange(DRAWS) * 17 + 1
    with on.execution:
        drawn = draw(weights.double().repeat(DRAWS, 1), seeds, torch.full((DRAWS,), 3))
    tokens: list[int] = drawn.view(-1).tolist()
    return tokens
