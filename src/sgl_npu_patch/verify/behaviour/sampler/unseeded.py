"""Check that everything else draws as before."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from sgl_npu_patch.simulator.sglang import Device
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.sampler.distribution import _DISTRIBUTIONS, _masses, _rounded
from sgl_npu_patch.verify.behaviour.sampler.trial import (
    PYTORCH,
    Trial,
    compiled,
    demand_same,
    largest_everywhere,
    logits_with_sum_past_one,
    multinomial_calls,
    sampler_check,
    shown_call,
)
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    NEIGHBOURS,
    PLAIN,
    SUBJECTS,
    Machine,
    Request,
    random_logits,
    with_seeds,
)


@sampler_check()
def unseeded_draws_are_multinomial(trial: Trial) -> None:
    """Without seeds the draw is torch.multinomial over the filtered probabilities."""
    for fused in trial.kinds:
        on = trial.machine(fused=fused)
        for name, (request, kept) in _DISTRIBUTIONS.items():
            if not trial.can_draw([request], fused=fused):
                continue
            on.hashed.clear()
            with multinomial_calls() as seen:
                on.draw([replace(request, seed=None)])
            if len(seen) != 1 or on.hashed:
                raise Failed(
                    f"an unseeded batch on the path {name!r} samples in another way",
                    expected="1 call of torch.multinomial, none of murmur_hash32",
                    found=f"{len(seen)} and {len(on.hashed)}",
                    code=shown_call(replace(request, seed=None)),
                )
            weights = seen[0][0][0].double().sort(descending=True).values
            expected = _masses(kept).sort(descending=True).values
            if not torch.allclose(weights / weights.sum(), expected, rtol=1e-4, atol=1e-9):
                raise Failed(
                    f"an unseeded batch on the path {name!r} samples from other probabilities",
                    expected=str(_rounded(expected)),
                    found=str(_rounded(weights / weights.sum())),
                    code=shown_call(replace(request, seed=None)),
                )


_UNSEEDED = {
    name: [replace(other, seed=None) for other in NEIGHBOURS[name]]
    for name in ("simple", "fused-both", "sorted-top-p", "sorted-top-k", "sorted-min-p", "mixed")
}


@cache
def _unseeded_tail() -> list[Request]:
    logits, _ = logits_with_sum_past_one()
    other = random_logits(2, len(logits))
    return [Request(logits, seed=None), Request(other, seed=None, top_p=0.9)]


@sampler_check()
def unseeded_draws_are_the_originals(trial: Trial) -> None:
    """Without seeds every token, weight and log-probability is the unpatched tree's."""
    for fused in trial.kinds:
        for logprobs in (False, True):
            for name, batch in {**_UNSEEDED, "sorted-tail": _unseeded_tail()}.items():
                before = _unseeded(trial.original(fused=fused), batch, logprobs=logprobs)
                after = _unseeded(trial.machine(fused=fused), batch, logprobs=logprobs)
                for what, expected, found in zip(
                    ("tokens", "log-probabilities", "weights", "options", "generator"),
                    before,
                    after,
                    strict=True,
                ):
                    if found != expected:
                        raise Failed(
                            f"sampling without seeds has other {what} than before, batch {name!r}",
                            expected=str(expected)[:200],
                            found=str(found)[:200],
                            code=shown_call(batch[0]),
                        )


def _unseeded(on: Machine, batch: list[Request], *, logprobs: bool) -> tuple[Any, ...]:
    """Return all that unseeded draws show of themselves."""
    torch.manual_seed(3)
    with multinomial_calls() as seen:
        drawn = [on.forward(batch, logprobs=logprobs) for _ in range(6)]
    attached = [each.next_token_logprobs.tolist() for _, each in drawn if logprobs]
    weights = [call[0].tolist() for call in seen]
    options = [call[1:] for call in seen]
    state = torch.get_rng_state().tolist()
    return [tokens for tokens, _ in drawn], attached, weights, options, state


@sampler_check(backends=(PYTORCH,))
def other_backends_keep_their_tokens(trial: Trial) -> None:
    """Sampling by the backend pytorch is as before without seeds or off the NPU."""
    devices: tuple[Device, ...] = ("npu", "cuda")
    for device in devices:
        before = trial.original(device=device, backend=PYTORCH)
        after = trial.machine(device=device, backend=PYTORCH)
        for logprobs in (False, True):
            for name, request in SUBJECTS.items():
                if request.min_p or device == "npu":
                    continue
                seeded = with_seeds(request, 50)
                expected = before.draw(seeded, logprobs=logprobs)
                drawn = after.draw(seeded, logprobs=logprobs)
                demand_same(drawn, expected, f"{name!r} on {device}", shown_call(request))
            for batch in _UNSEEDED.values():
                torch.manual_seed(5)
                expected = before.draw(batch, logprobs=logprobs)
                torch.manual_seed(5)
                drawn = after.draw(batch, logprobs=logprobs)
                demand_same(drawn, expected, f"unseeded on {device}", shown_call(batch[0]))
        if device == "npu":
            continue
        with before.hashing(largest_everywhere), after.hashing(largest_everywhere):
            expected = before.draw([PLAIN])
            drawn = after.draw([PLAIN])
        demand_same(drawn, expected, f"a row of largest hashes on {device}", shown_call(PLAIN))
        if compiled(after) != compiled(before):
            raise Failed(
                f"other functions are compiled on {device}",
                expected=str(compiled(before)),
                found=str(compiled(after)),
            )


@sampler_check()
def tokens_have_one_type(trial: Trial) -> None:
    """Seeded tokens are of the type of unseeded ones."""
    on = trial.machine()
    for name in ("simple", "fused-top-k", "sorted-top-p"):
        types = []
        for batch in (NEIGHBOURS[name], [replace(each, seed=None) for each in NEIGHBOURS[name]]):
            on.draw(batch)
            types.append(on.token_type)
        if types[0] != types[1]:
            raise Failed(
                f"seeded tokens are of another type, batch {name!r}",
                expected=str(types[1]),
                found=str(types[0]),
                code=shown_call(NEIGHBOURS[name][0]),
            )
