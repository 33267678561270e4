"""Check that what a seeded request draws depends on nothing else of its batch."""

from __future__ import annotations

from dataclasses import replace

import torch

from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.sampler.trial import (
    LARGEST_HASH,
    ORIGINAL_LOGPROB,
    SEEDS,
    Trial,
    attribute,
    demand_alone,
    demand_same,
    half,
    logits_with_sum_past_one,
    sampler_check,
    shown_call,
)
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    LOGITS,
    NEIGHBOURS,
    OTHERS,
    PLAIN,
    SUBJECTS,
    draw_among,
    favouring,
    random_logits,
    sampling_info,
    shuffled,
    with_seeds,
)

_NEIGHBOUR = "neighbour_dependent_draw"


@sampler_check(gap=_NEIGHBOUR)
def neighbours_change_nothing(trial: Trial) -> None:
    """A request's token does not depend on the other requests of its batch.

    Without the fused operator top-k with top-p is another nucleus, but the same in every batch.
    """
    for fused in trial.kinds:
        for name, request in trial.subjects(fused=fused).items():
            seeded = with_seeds(request, SEEDS)
            expected = trial.alone(name, fused=fused)
            for other in NEIGHBOURS:
                demand_alone(trial, seeded, other, NEIGHBOURS[other], expected, fused=fused)
    for name in ("plain", "warm", "top-p", "min-p"):
        # Not through the fused operator, which the type of top-p is a matter of its own for.
        seeded = [half(each) for each in with_seeds(SUBJECTS[name], 30)]
        expected = [trial.machine().draw([each])[0] for each in seeded]
        for other in ("simple", "sorted-top-p", "sorted-min-p"):
            others = [half(each) for each in NEIGHBOURS[other]]
            demand_alone(trial, seeded, other, others, expected)


@sampler_check(gap=_NEIGHBOUR)
def a_neighbour_that_left_changes_nothing(trial: Trial) -> None:
    """What another request has set in a batch's flags changes no token after it has left.

    SGLang does not take a flag back when the request that set it is filtered out.
    """
    for fused in trial.kinds:
        for name, request in trial.subjects(fused=fused).items():
            seeded = with_seeds(request, SEEDS)
            info = sampling_info(seeded)
            info.is_all_greedy = info.npu_top_k_top_p_eligible = False
            info.need_top_k_sampling = info.need_top_p_sampling = True
            drawn = trial.machine(fused=fused).draw(seeded, info=info)
            expected = trial.alone(name, fused=fused)
            code = f"{shown_call(request)}  # need_top_p_sampling as another request left it"
            demand_same(drawn, expected, "after another request has left", code)


@sampler_check(gap=_NEIGHBOUR)
def ties_are_cut_the_same(trial: Trial) -> None:
    """Where logits tie at the k-th, a request keeps the same of them in every batch."""
    logits = LOGITS.round()
    for top_k in (1, 2, 3, 40):
        seeded = with_seeds(replace(PLAIN, logits=logits, top_k=top_k), 40)
        expected = [trial.machine().draw([each])[0] for each in seeded]
        for other in NEIGHBOURS:
            demand_alone(trial, seeded, other, NEIGHBOURS[other], expected)


@sampler_check(gap=_NEIGHBOUR)
def greedy_takes_the_first_of_ties(trial: Trial) -> None:
    """A greedy request takes the first of tied logits, as argmax does, in every batch.

    Logits of a bfloat16 head often tie.
    """
    logits = LOGITS.clone()
    tied = logits.topk(3).indices
    logits[tied] = logits.max()
    expected = [int(tied.min())] * 20
    seeded = with_seeds(replace(PLAIN, logits=logits, top_k=1), 20)
    for fused in trial.kinds:
        drawn = trial.machine(fused=fused).draw(seeded)
        demand_same(drawn, expected, "a greedy batch", shown_call(seeded[0]))
        for other in NEIGHBOURS:
            demand_alone(trial, seeded, other, NEIGHBOURS[other], expected, fused=fused)


@sampler_check(gap=_NEIGHBOUR)
def no_top_p_keeps_the_tail(trial: Trial) -> None:
    """Where the running sum is rounded past 1, a nucleus of 1.0 cuts nothing."""
    on = trial.machine()
    logits, token = logits_with_sum_past_one()
    rare = replace(PLAIN, logits=logits, seed=12345)
    with on.hashing(favouring(seed=12345, column=token, value=LARGEST_HASH - 1)):
        demand_same(on.draw([rare]), [token], "a request alone", shown_call(rare))
        for name, neighbours in NEIGHBOURS.items():
            others = [
                replace(other, logits=random_logits(other.position, len(logits)))
                for other in neighbours
            ]
            demand_alone(trial, [rare], name, others, [token])


@sampler_check()
def batch_order_changes_nothing(trial: Trial) -> None:
    """A request's token does not depend on its place in the batch."""
    on = trial.machine()
    for request in trial.subjects().values():
        seeded = with_seeds(request, SEEDS)
        drawn = on.draw(seeded)
        for order in (list(range(SEEDS))[::-1], shuffled(SEEDS, 3)):
            again = on.draw([seeded[index] for index in order])
            expected = [drawn[index] for index in order]
            demand_same(again, expected, "the batch in another order", shown_call(request))


@sampler_check()
def logprobs_change_nothing(trial: Trial) -> None:
    """Asking for log-probabilities changes no token, and they are those of the logits."""
    on = trial.machine()
    variants = (False, True) if hasattr(on.module, ORIGINAL_LOGPROB) else (False,)
    for original in variants:
        with attribute(on.module, ORIGINAL_LOGPROB, original):
            for request in trial.subjects().values():
                seeded = with_seeds(request, SEEDS)
                for others in ([], NEIGHBOURS["mixed"]):
                    expected = draw_among(on, seeded, others)
                    drawn = draw_among(on, seeded, others, logprobs=True)
                    demand_same(drawn, expected, "with log-probabilities", shown_call(request))
                tokens, output = on.forward(seeded, logprobs=True)
                raw = original or request.top_k == 1
                logits = request.logits if raw else request.logits / request.temperature
                found = output.next_token_logprobs
                right = torch.log_softmax(logits, dim=-1)[tokens]
                if found.shape != right.shape or not torch.allclose(found, right, 1e-6, 1e-5):
                    raise Failed(
                        "the log-probabilities are not those of the logits",
                        expected=str(right.tolist())[:200],
                        found=str(found.tolist())[:200],
                        code=shown_call(request),
                    )


@sampler_check()
def global_generator_is_not_used(trial: Trial) -> None:
    """With seeds, torch's global generator is neither used nor moved."""
    on = trial.machine()
    with attribute(torch, "multinomial", _refuse_multinomial):
        for subject, other in (("plain", "simple"), ("top-k", "fused-both"), ("top-p", "mixed")):
            seeded = with_seeds(SUBJECTS[subject], SEEDS)
            drawn: list[list[int]] = []
            for seed in (0, 1, 99):
                torch.manual_seed(seed)
                state = torch.get_rng_state()
                drawn.append(draw_among(on, seeded, NEIGHBOURS[other]))
                if not torch.equal(torch.get_rng_state(), state):
                    raise Failed(
                        "sampling by seed moves the global generator",
                        code=shown_call(seeded[0], other),
                    )
                demand_same(drawn[-1], drawn[0], "after manual_seed", shown_call(seeded[0], other))


def _refuse_multinomial(*arguments: object, **options: object) -> None:
    raise Failed("torch.multinomial is called with seeds", expected="multinomial_with_seed")


@sampler_check()
def same_batch_twice(trial: Trial) -> None:
    """A batch sampled again gives the same tokens: its parameters outlive a step."""
    on = trial.machine()
    batch = [*with_seeds(PLAIN, 40), *NEIGHBOURS["mixed"]]
    info = sampling_info(batch)
    first = on.draw(batch, info=info)
    demand_same(on.draw(batch, info=info), first, "the second time", shown_call(PLAIN, "mixed"))


@sampler_check()
def greedy_batches_take_the_largest(trial: Trial) -> None:
    """A batch of greedy requests takes each row's largest logit."""
    batch = [replace(other, top_k=1) for other in OTHERS]
    expected = [int(each.logits.argmax()) for each in batch]
    demand_same(trial.machine().draw(batch), expected, "a greedy batch", shown_call(batch[0]))
