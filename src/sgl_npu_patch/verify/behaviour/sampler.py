"""Execute the Ascend path of a sampler: what a seeded request draws is its own affair."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any

import torch

from sgl_npu_patch.simulator.sglang import Device
from sgl_npu_patch.simulator.torch_npu import top_k_top_p
from sgl_npu_patch.verify.behaviour import Failed, NotApplicable, Run, Subject, check
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    LOGITS,
    NEIGHBOURS,
    OTHERS,
    PLAIN,
    SUBJECTS,
    Machine,
    Request,
    draw_among,
    favouring,
    is_fused,
    random_logits,
    remembered_hash,
    sampling_info,
    shuffled,
    with_seeds,
)

SEEDS = 60
DRAWS = 20_000
UNLIKELY = 1e-6
"""Draws that fit a distribution so badly are not of it. They are the same in every run."""
LARGEST_HASH = 2**32 - 1

_NEIGHBOUR = "neighbour_dependent_draw"
_ORIGINAL_LOGPROB = "SGLANG_RETURN_ORIGINAL_LOGPROB"


class Trial:
    """One tree, with what several checks need to know of it."""

    def __init__(self, package: Path, base: Path | None) -> None:
        self._package = package
        self._base = base
        self._machines: dict[tuple[Any, ...], Machine] = {}
        self._alone: dict[tuple[str, bool], list[int]] = {}

    def machine(
        self, *, fused: bool = True, device: Device = "npu", backend: str = "ascend"
    ) -> Machine:
        """Return the tree's sampler on a kind of machine."""
        return self._made(self._package, fused, device, backend)

    def original(
        self, *, fused: bool = True, device: Device = "npu", backend: str = "ascend"
    ) -> Machine:
        """Return the unpatched tree's, or raise NotApplicable."""
        if self._base is None:
            raise NotApplicable("compares with the unpatched tree: give it with --base")
        return self._made(self._base, fused, device, backend)

    def alone(self, name: str, *, fused: bool = True) -> list[int]:
        """Return a subject's tokens for every seed, each drawn in a batch of its own."""
        if (name, fused) not in self._alone:
            on = self.machine(fused=fused)
            seeded = with_seeds(SUBJECTS[name], SEEDS)
            self._alone[name, fused] = [on.draw([each])[0] for each in seeded]
        return self._alone[name, fused]

    def subjects(self, *, fused: bool = True) -> dict[str, Request]:
        """Return the subjects that can be drawn alone."""
        return {name: each for name, each in SUBJECTS.items() if self.can_draw([each], fused=fused)}

    def can_draw(self, batch: Sequence[Request], *, fused: bool = True) -> bool:
        """Tell whether the tree draws that batch at all.

        A tree that raises on min-p with the fused operator is told so once, and is judged without
        such batches everywhere else.
        """
        return (
            self._draws_fused_min_p
            or not fused
            or not is_fused(batch)
            or all(request.min_p == 0 for request in batch)
        )

    @cached_property
    def _draws_fused_min_p(self) -> bool:
        on = self.machine()
        try:
            with on.hashing(remembered_hash):
                on.draw(NEIGHBOURS["fused-min-p"])
        except TypeError:
            return False
        return True

    def _made(self, package: Path, fused: bool, device: Device, backend: str) -> Machine:
        key = (package, fused, device, backend)
        if key not in self._machines:
            self._machines[key] = Machine(package, fused=fused, device=device, backend=backend)
        return self._machines[key]


@cache
def _trial(package: Path, base: Path | None) -> Trial:
    return Trial(package, base)


def _sampler_check(*, gap: str = "") -> Callable[[Callable[[Trial], None]], Run]:
    """Declare a check of a tree's Ascend path, run apart from the process's random state."""

    def declare(run: Callable[[Trial], None]) -> Run:
        @wraps(run)
        def prepared(subject: Subject) -> None:
            if "sampler" in subject.left_out:
                raise NotApplicable(
                    "the tree keeps upstream's sampler, and the handler keeps its deterministic "
                    f"server off the Ascend path (seam sampler: {subject.left_out['sampler']})"
                )
            with _settled():
                run(_trial(subject.package, subject.base))

        return check("sampler", gap=gap)(prepared)

    return declare


@contextmanager
def _settled() -> Iterator[None]:
    threads = torch.get_num_threads()
    # Starting threads costs more than these tensors do.
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@_sampler_check(gap=_NEIGHBOUR)
def neighbours_change_nothing(trial: Trial) -> None:
    """A request's token does not depend on its neighbours.

    Without the fused operator top-k with top-p is another nucleus, but the same in every batch.
    """
    for fused in (True, False):
        for name, request in trial.subjects(fused=fused).items():
            seeded = with_seeds(request, SEEDS)
            expected = trial.alone(name, fused=fused)
            for other in NEIGHBOURS:
                _demand_alone(trial, seeded, other, NEIGHBOURS[other], expected, fused=fused)
    for name in ("plain", "warm", "top-p", "min-p"):
        # Not through the fused operator, which the type of top-p is a matter of its own for.
        seeded = [_half(each) for each in with_seeds(SUBJECTS[name], 30)]
        expected = [trial.machine().draw([each])[0] for each in seeded]
        for other in ("simple", "sorted-top-p", "sorted-min-p"):
            others = [_half(each) for each in NEIGHBOURS[other]]
            _demand_alone(trial, seeded, other, others, expected)


@_sampler_check(gap=_NEIGHBOUR)
def a_neighbour_that_left_changes_nothing(trial: Trial) -> None:
    """What a neighbour has set in a batch's flags changes no token after it has left.

    SGLang does not take a flag back when the request that set it is filtered out.
    """
    for fused in (True, False):
        for name, request in trial.subjects(fused=fused).items():
            seeded = with_seeds(request, SEEDS)
            info = sampling_info(seeded)
            info.is_all_greedy = info.npu_top_k_top_p_eligible = False
            info.need_top_k_sampling = info.need_top_p_sampling = True
            drawn = trial.machine(fused=fused).draw(seeded, info=info)
            expected = trial.alone(name, fused=fused)
            code = f"{_call(request)}  # need_top_p_sampling as a neighbour left it"
            _demand_same(drawn, expected, "after a neighbour has left", code)


@_sampler_check(gap=_NEIGHBOUR)
def ties_are_cut_the_same(trial: Trial) -> None:
    """Where logits tie at the k-th, a request keeps the same of them in every batch."""
    logits = LOGITS.round()
    for top_k in (1, 2, 3, 40):
        seeded = with_seeds(replace(PLAIN, logits=logits, top_k=top_k), 40)
        expected = [trial.machine().draw([each])[0] for each in seeded]
        for other in NEIGHBOURS:
            _demand_alone(trial, seeded, other, NEIGHBOURS[other], expected)


@_sampler_check(gap=_NEIGHBOUR)
def greedy_takes_the_first_of_ties(trial: Trial) -> None:
    """A greedy request takes the first of tied logits, as argmax does, in every batch.

    Logits of a bfloat16 head often tie.
    """
    logits = LOGITS.clone()
    tied = logits.topk(3).indices
    logits[tied] = logits.max()
    expected = [int(tied.min())] * 20
    seeded = with_seeds(replace(PLAIN, logits=logits, top_k=1), 20)
    for fused in (True, False):
        drawn = trial.machine(fused=fused).draw(seeded)
        _demand_same(drawn, expected, "a greedy batch", _call(seeded[0]))
        for other in NEIGHBOURS:
            _demand_alone(trial, seeded, other, NEIGHBOURS[other], expected, fused=fused)


@_sampler_check(gap=_NEIGHBOUR)
def no_top_p_keeps_the_tail(trial: Trial) -> None:
    """Where the running sum is rounded past 1, a nucleus of 1.0 cuts nothing."""
    on = trial.machine()
    logits, token = _logits_with_sum_past_one()
    rare = replace(PLAIN, logits=logits, seed=12345)
    with on.hashing(favouring(seed=12345, column=token, value=LARGEST_HASH - 1)):
        _demand_same(on.draw([rare]), [token], "a request alone", _call(rare))
        for name, neighbours in NEIGHBOURS.items():
            others = [
                replace(other, logits=random_logits(other.position, len(logits)))
                for other in neighbours
            ]
            _demand_alone(trial, [rare], name, others, [token])


@_sampler_check()
def batch_order_changes_nothing(trial: Trial) -> None:
    """A request's token does not depend on its place in the batch."""
    on = trial.machine()
    for request in trial.subjects().values():
        seeded = with_seeds(request, SEEDS)
        drawn = on.draw(seeded)
        for order in (list(range(SEEDS))[::-1], shuffled(SEEDS, 3)):
            again = on.draw([seeded[index] for index in order])
            expected = [drawn[index] for index in order]
            _demand_same(again, expected, "the batch in another order", _call(request))


@_sampler_check()
def logprobs_change_nothing(trial: Trial) -> None:
    """Asking for log-probabilities changes no token, and they are those of the logits."""
    on = trial.machine()
    variants = (False, True) if hasattr(on.module, _ORIGINAL_LOGPROB) else (False,)
    for original in variants:
        with _attribute(on.module, _ORIGINAL_LOGPROB, original):
            for request in trial.subjects().values():
                seeded = with_seeds(request, SEEDS)
                for others in ([], NEIGHBOURS["mixed"]):
                    expected = draw_among(on, seeded, others)
                    drawn = draw_among(on, seeded, others, logprobs=True)
                    _demand_same(drawn, expected, "with log-probabilities", _call(request))
                tokens, output = on.forward(seeded, logprobs=True)
                raw = original or request.top_k == 1
                logits = request.logits if raw else request.logits / request.temperature
                torch.testing.assert_close(
                    output.next_token_logprobs, torch.log_softmax(logits, dim=-1)[tokens]
                )


@_sampler_check()
def global_generator_is_not_used(trial: Trial) -> None:
    """With seeds, torch's global generator is neither used nor moved."""
    on = trial.machine()
    with _attribute(torch, "multinomial", _refuse_multinomial):
        for subject, other in (("plain", "simple"), ("top-k", "fused-both"), ("top-p", "mixed")):
            seeded = with_seeds(SUBJECTS[subject], SEEDS)
            drawn: list[list[int]] = []
            for seed in (0, 1, 99):
                torch.manual_seed(seed)
                state = torch.get_rng_state()
                drawn.append(draw_among(on, seeded, NEIGHBOURS[other]))
                if not torch.equal(torch.get_rng_state(), state):
                    raise Failed(
                        "a seeded draw moves the global generator", code=_call(seeded[0], other)
                    )
                _demand_same(drawn[-1], drawn[0], "after manual_seed", _call(seeded[0], other))


@_sampler_check()
def same_batch_twice(trial: Trial) -> None:
    """A batch drawn again gives the same tokens: its parameters outlive a step."""
    on = trial.machine()
    batch = [*with_seeds(PLAIN, 40), *NEIGHBOURS["mixed"]]
    info = sampling_info(batch)
    first = on.draw(batch, info=info)
    _demand_same(on.draw(batch, info=info), first, "the second time", _call(PLAIN, "mixed"))


@_sampler_check()
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
                "rows are drawn at other seeds or positions than their own",
                expected=f"(seed, position) {expected}",
                found=str(found),
                code=_call(batch[0]),
            )


@_sampler_check()
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
                    f"200 {what} give {len(set(tokens))} different tokens", code=_call(request)
                )
        if drawn["seeds"] == drawn["positions"]:
            raise Failed("a seed and a position are mixed up", code=_call(request))


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


@_sampler_check()
def draws_follow_the_distribution(trial: Trial) -> None:
    """Seeded draws follow the model's distribution, over seeds and over positions."""
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
                    code=_call(request),
                )
    # The fused operator renormalises between the two filters, SGLang's sorted path does not.
    both = Request(_SMALL, top_k=3, top_p=0.6)
    tokens = _draw_many(trial.machine(), both, "seeds")
    if max(p_value(tokens, 2), p_value(tokens, 3)) <= UNLIKELY:
        raise Failed(
            "top-k with top-p gives neither of the two nuclei",
            found=str(_rounded(_frequencies(tokens))),
            code=_call(both),
        )


@_sampler_check()
def logarithm_is_taken_once(trial: Trial) -> None:
    """The seeded draw is given what it takes: log-probabilities, or probabilities."""
    on = trial.machine()
    draw = on.module.multinomial_with_seed
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

        with _attribute(on.module, "multinomial_with_seed", record):
            on.draw([request])
        if len(seen) != 1:
            raise Failed(
                f"the path {name!r} draws {len(seen)} times with seeds", code=_call(request)
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
                code=_call(request),
            )


@_sampler_check(gap="gumbel_upper_bound")
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
    with on.hashing(_largest_everywhere):
        drawn = on.draw([PLAIN])
        _demand_same(drawn, [int(LOGITS.argmax())], "a row of largest hashes", _call(PLAIN))


@_sampler_check(gap="min_p_type_error")
def min_p_works_on_the_fused_path(trial: Trial) -> None:
    """Min-p beside top-k, which takes the fused operator, filters and does not raise."""
    on = trial.machine()
    batch = [
        replace(other, top_k=20, min_p=0.1 * index, seed=None) for index, other in enumerate(OTHERS)
    ]
    seeded = [replace(each, seed=3) for each in batch]
    on.fused_calls = 0
    try:
        on.draw(seeded)
        with _multinomial_calls() as seen:
            on.draw(batch)
    except TypeError as error:
        raise Failed(
            f"a min-p request raises TypeError: {error}",
            expected="probabilities below min_p times the largest are dropped",
            found=str(error),
            code=_call(seeded[1]),
        ) from error
    if on.fused_calls == 0:
        return
    info = sampling_info(batch)
    logits = torch.stack([request.logits for request in batch])
    probabilities = top_k_top_p(logits, info.top_ps, info.top_ks).softmax(dim=-1)
    least = probabilities.amax(dim=-1, keepdim=True) * info.min_ps.unsqueeze(1)
    expected = probabilities.masked_fill(probabilities < least, 0.0)
    weights = seen[0][0].double()
    share = weights / weights.sum(-1, keepdim=True)
    expected = expected.double() / expected.double().sum(-1, keepdim=True)
    if not torch.allclose(share, expected, rtol=1e-5, atol=1e-9):
        raise Failed(
            "min-p keeps other tokens than those of min_p times the largest probability",
            expected=f"{(expected > 0).sum(-1).tolist()} tokens a row",
            found=f"{(share > 0).sum(-1).tolist()} tokens a row",
            code=_call(batch[1]),
        )


@_sampler_check(gap="top_p_dtype")
def top_p_has_the_type_of_logits(trial: Trial) -> None:
    """The fused operator gets top-p in the type of the logits, which it requires."""
    on = trial.machine()
    for name in ("top-k", "top-k-and-top-p"):
        seeded = [_half(each) for each in with_seeds(SUBJECTS[name], 30)]
        try:
            expected = [on.draw([each])[0] for each in seeded]
        except RuntimeError as error:
            if "npu_top_k_top_p takes p" not in str(error):
                raise
            raise Failed(
                f"bfloat16 logits fail: {error}",
                expected="p of type torch.bfloat16",
                found=str(error),
                code=_call(seeded[0]),
            ) from error
        others = [_half(each) for each in NEIGHBOURS["fused-both"]]
        _demand_alone(trial, seeded, "fused-both", others, expected)


@_sampler_check()
def unseeded_draws_are_multinomial(trial: Trial) -> None:
    """Without seeds the draw is torch.multinomial over the filtered probabilities."""
    for fused in (True, False):
        on = trial.machine(fused=fused)
        for name, (request, kept) in _DISTRIBUTIONS.items():
            if not trial.can_draw([request], fused=fused):
                continue
            on.hashed.clear()
            with _multinomial_calls() as seen:
                on.draw([replace(request, seed=None)])
            if len(seen) != 1 or on.hashed:
                raise Failed(
                    f"an unseeded batch on the path {name!r} draws in another way",
                    expected="1 call of torch.multinomial, none of murmur_hash32",
                    found=f"{len(seen)} and {len(on.hashed)}",
                    code=_call(replace(request, seed=None)),
                )
            weights = seen[0][0][0].double().sort(descending=True).values
            expected = _masses(kept).sort(descending=True).values
            if not torch.allclose(weights / weights.sum(), expected, rtol=1e-4, atol=1e-9):
                raise Failed(
                    f"an unseeded batch on the path {name!r} draws from other probabilities",
                    expected=str(_rounded(expected)),
                    found=str(_rounded(weights / weights.sum())),
                    code=_call(replace(request, seed=None)),
                )


_UNSEEDED = {
    name: [replace(other, seed=None) for other in NEIGHBOURS[name]]
    for name in ("simple", "fused-both", "sorted-top-p", "sorted-top-k", "sorted-min-p", "mixed")
}


@cache
def _unseeded_tail() -> list[Request]:
    logits, _ = _logits_with_sum_past_one()
    other = random_logits(2, len(logits))
    return [Request(logits, seed=None), Request(other, seed=None, top_p=0.9)]


@_sampler_check()
def unseeded_draws_are_the_originals(trial: Trial) -> None:
    """Without seeds every token, weight and log-probability is the unpatched tree's."""
    for fused in (True, False):
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
                            f"unseeded draws have other {what} than before, batch {name!r}",
                            expected=str(expected)[:200],
                            found=str(found)[:200],
                            code=_call(batch[0]),
                        )


@_sampler_check()
def other_backends_keep_their_tokens(trial: Trial) -> None:
    """Sampling by the backend pytorch is as before, on the NPU and off it, compiled as before."""
    devices: tuple[Device, ...] = ("npu", "cuda")
    for device in devices:
        before = trial.original(device=device, backend="pytorch")
        after = trial.machine(device=device, backend="pytorch")
        for logprobs in (False, True):
            for name, request in SUBJECTS.items():
                if request.min_p:
                    continue
                seeded = with_seeds(request, 50)
                expected = before.draw(seeded, logprobs=logprobs)
                drawn = after.draw(seeded, logprobs=logprobs)
                _demand_same(drawn, expected, f"{name!r} on {device}", _call(request))
            for batch in _UNSEEDED.values():
                torch.manual_seed(5)
                expected = before.draw(batch, logprobs=logprobs)
                torch.manual_seed(5)
                drawn = after.draw(batch, logprobs=logprobs)
                _demand_same(drawn, expected, f"unseeded on {device}", _call(batch[0]))
        if device == "npu":
            continue
        with before.hashing(_largest_everywhere), after.hashing(_largest_everywhere):
            expected = before.draw([PLAIN])
            drawn = after.draw([PLAIN])
        _demand_same(drawn, expected, f"a row of largest hashes on {device}", _call(PLAIN))
        if _compiled(after) != _compiled(before):
            raise Failed(
                f"other functions are compiled on {device}",
                expected=str(_compiled(before)),
                found=str(_compiled(after)),
            )


@_sampler_check()
def not_compiled_on_an_npu(trial: Trial) -> None:
    """Nothing that draws with seeds goes through torch.compile on an NPU."""
    for backend in ("ascend", "pytorch"):
        on = trial.machine(backend=backend)
        on.draw(with_seeds(PLAIN, 3))
        on.draw(with_seeds(SUBJECTS["top-k"], 3))
        on.draw(with_seeds(SUBJECTS["top-p"], 3))
        if compiled := _compiled(on):
            raise Failed(
                "a function of the seeded draw is compiled on the NPU",
                expected="torch.compile(..., disable=True)",
                found=", ".join(compiled),
                code=_call(PLAIN),
            )


_FUNCTIONS = (
    "forward",
    "_forward_ascend_backend",
    "_sample_from_logits",
    "top_k_top_p_min_p_sampling_from_logits_ascend",
    "multinomial_with_seed",
)


@_sampler_check()
def forgotten_positions_fail_loudly(trial: Trial) -> None:
    """No function on the way has a default for positions: a caller that forgets them fails."""
    module = trial.machine().module
    found = 0
    for name in _FUNCTIONS:
        function = getattr(module, name, None) or getattr(module.Sampler, name, None)
        if function is None:
            continue
        function = getattr(function, "function", function)
        taken = inspect.signature(function).parameters
        for parameter in ("positions", "sampling_seed"):
            if parameter in taken and taken[parameter].default is not inspect.Parameter.empty:
                raise Failed(
                    f"{name} has a default for {parameter}: a fork's override that forgets it "
                    "draws at the same one for ever",
                    expected=parameter,
                    found=str(taken[parameter]),
                    code=f"def {name}{inspect.signature(function)}",
                )
        found += "positions" in taken
    assert found, "no function of the Ascend path takes positions"


@_sampler_check()
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
                code=_call(NEIGHBOURS[name][0]),
            )


@_sampler_check()
def greedy_batches_take_the_largest(trial: Trial) -> None:
    """A batch of greedy requests takes each row's largest logit."""
    batch = [replace(other, top_k=1) for other in OTHERS]
    expected = [int(each.logits.argmax()) for each in batch]
    _demand_same(trial.machine().draw(batch), expected, "a greedy batch", _call(batch[0]))


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
    if vary == "seeds":
        return on.draw([replace(request, seed=i * 31 + 5, position=3) for i in range(DRAWS)])
    return on.draw([replace(request, seed=42, position=i) for i in range(DRAWS)])


def _drawn_by(on: Machine, draw: Callable[..., Any], weights: torch.Tensor) -> list[int]:
    seeds = torch.arange(DRAWS) * 17 + 1
    with on.execution:
        drawn = draw(weights.double().repeat(DRAWS, 1), seeds, torch.full((DRAWS,), 3))
    tokens: list[int] = drawn.view(-1).tolist()
    return tokens


def _demand_alone(
    trial: Trial,
    seeded: list[Request],
    name: str,
    others: Sequence[Request],
    expected: list[int],
    *,
    fused: bool = True,
) -> None:
    """Demand the tokens of the requests alone beside those neighbours too."""
    if not trial.can_draw([*seeded, *others], fused=fused):
        return
    drawn = draw_among(trial.machine(fused=fused), seeded, others)
    where = "" if fused else ", without npu_top_k_top_p"
    _demand_same(drawn, expected, f"beside {name!r} neighbours{where}", _call(seeded[0], name))


def _demand_same(drawn: list[int], expected: list[int], when: str, code: str) -> None:
    differing = [i for i, pair in enumerate(zip(drawn, expected, strict=True)) if len({*pair}) > 1]
    if differing:
        first = differing[0]
        raise Failed(
            f"{when}, {len(differing)} of {len(drawn)} requests draw other tokens",
            expected=f"token {expected[first]}",
            found=f"token {drawn[first]}",
            code=code,
        )


def _demand_not(
    token: int, on: Machine, request: Request, others: Sequence[Request], what: str
) -> None:
    if draw_among(on, [request], others) == [token]:
        raise Failed(
            f"{what} by a hash of 2**32 - 1, whose noise is infinite",
            expected="any other token",
            found=f"token {token}",
            code=_call(request),
        )


def _call(request: Request, neighbours: str = "") -> str:
    """Write down the call that shows a failure."""
    call = f"Sampler.forward([{_told(request)}])"
    if neighbours:
        beside = ", ".join(_told(other) for other in NEIGHBOURS[neighbours])
        call += f"\nSampler.forward([{_told(request)}, {beside}])"
    return f'# sampling_backend="ascend"\n{call}'


def _told(request: Request) -> str:
    given = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name != "logits" and getattr(request, field.name) != field.default
    }
    told = {"seed": request.seed, "position": request.position, **given}
    return f"dict({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def _half(request: Request) -> Request:
    return replace(request, logits=request.logits.bfloat16())


def _compiled(on: Machine) -> list[str]:
    return sorted(
        each.__name__ for each in on.execution.compiled if each.calls and not each.disabled
    )


def _unseeded(on: Machine, batch: list[Request], *, logprobs: bool) -> tuple[Any, ...]:
    """Return all that unseeded draws show of themselves."""
    torch.manual_seed(3)
    with _multinomial_calls() as seen:
        drawn = [on.forward(batch, logprobs=logprobs) for _ in range(6)]
    attached = [each.next_token_logprobs.tolist() for _, each in drawn if logprobs]
    weights = [call[0].tolist() for call in seen]
    options = [call[1:] for call in seen]
    state = torch.get_rng_state().tolist()
    return [tokens for tokens, _ in drawn], attached, weights, options, state


@contextmanager
def _multinomial_calls() -> Iterator[list[tuple[Any, ...]]]:
    """Record the arguments of `torch.multinomial`, which goes on working."""
    seen: list[tuple[Any, ...]] = []
    real = torch.multinomial

    def spy(weights: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        seen.append((weights.clone(), arguments, options))
        return real(weights, *arguments, **options)

    with _attribute(torch, "multinomial", spy):
        yield seen


@contextmanager
def _attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _refuse_multinomial(*arguments: object, **options: object) -> None:
    raise Failed("torch.multinomial is called with seeds", expected="multinomial_with_seed")


def _largest_everywhere(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    shape = (len(seed), len(columns))
    return torch.full(shape, LARGEST_HASH, dtype=torch.int64).to(torch.uint32)


@cache
def _logits_with_sum_past_one() -> tuple[torch.Tensor, int]:
    """Return logits whose sorted probabilities add up to more than 1 before the last token.

    And the likeliest of the tokens that a nucleus of 1.0 then leaves out.
    """
    for seed in range(200):
        logits = random_logits(seed, 20_000, 3.0)
        ordered, order = torch.softmax(logits, dim=-1).sort(descending=True)
        left_out = (ordered.cumsum(0) - ordered > 1.0).nonzero()
        if len(left_out) > 100:
            return logits, int(order[left_out[0, 0]])
    raise NotApplicable("no running sum is rounded past 1 on this processor")
