"""Execute the Ascend path of patched samplers: what a seeded request draws is its own affair."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from sgl_npu_patch.simulator.sglang import Device, Execution, murmur_hash32
from tests.upstream.releases import release_tree
from tests.upstream.trees import patched_tree

PATCHED = ("0.5.9", "0.5.12.post1", "lsglang==1.3.1")
# Not executed at length: their code must be that of a release in PATCHED.
ALIKE = (
    "0.5.10rc0",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "sglang-kt==0.5.2",
    "sglang-kt==0.6.1",
    "sglang-kt==0.6.3",
    "sglang-kt==0.7.2",
)
# Upstream's own adaptation, whose draw depends on the neighbours' parameters.
NATIVE = ("0.5.13",)

TOP_K_ALL = 1 << 30
VOCABULARY = 1200
SEEDS = 200
DRAWS = 20_000
ACCEPTED = 1e-4
LARGEST_HASH = 2**32 - 1

Hash = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Request:
    """One row of a batch. A seed of None makes the whole batch unseeded."""

    logits: torch.Tensor
    seed: int | None = 0
    position: int = 7
    temperature: float = 1.0
    top_k: int = TOP_K_ALL
    top_p: float = 1.0
    min_p: float = 0.0


class Machine:
    """A tree's sampler with the little around it that it needs; `hash` may be replaced."""

    def __init__(
        self,
        tree: Any,
        *,
        device: Device = "npu",
        backend: str = "ascend",
        fused: bool = True,
    ) -> None:
        self.hash: Hash = remembered_hash
        self.seeded_calls = 0
        self.fused_calls = 0
        server_args = SimpleNamespace(
            enable_nan_detection=False,
            rl_on_policy_target=None,
            enable_deterministic_inference=True,
            sampling_backend=backend,
        )
        torch_npu = ModuleType("torch_npu")
        if fused:
            vars(torch_npu)["npu_top_k_top_p"] = self._fused
        provide: dict[str, Any] = {
            "sglang.srt.server_args": {"get_global_server_args": lambda: server_args},
            "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": lambda: False},
            "sglang.srt.layers.utils.hash": {"murmur_hash32": self._hash},
            "sglang.srt.sampling.sampling_params": {"TOP_K_ALL": TOP_K_ALL},
        }
        if device == "npu":
            provide["torch_npu"] = torch_npu
        self.execution = Execution(tree, device, provide)
        with self.execution:
            self.module = self.execution.load("sglang.srt.layers.sampler")
            self.sampler = self.module.Sampler()

    def draw(
        self, requests: Sequence[Request], *, logprobs: bool = False, info: Any = None
    ) -> list[int]:
        """Run `Sampler.forward` on one batch."""
        return self.forward(requests, logprobs=logprobs, info=info)[0]

    def forward(
        self, requests: Sequence[Request], *, logprobs: bool = False, info: Any = None
    ) -> tuple[list[int], SimpleNamespace]:
        count = len(requests)
        output = SimpleNamespace(
            next_token_logits=torch.stack([request.logits for request in requests])
        )
        positions = torch.tensor([request.position for request in requests])
        with self.execution:
            tokens = self.sampler(
                output,
                info or sampling_info(requests),
                logprobs,
                [0] * count,
                [None] * count,
                positions,
            )
        assert tokens.shape == (count,)
        return tokens.tolist(), output

    def _hash(self, *arguments: torch.Tensor) -> torch.Tensor:
        self.seeded_calls += 1
        return self.hash(*arguments)

    def _fused(self, logits: torch.Tensor, p: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        self.fused_calls += 1
        return npu_top_k_top_p(logits, p, k)


def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Filter as CANN documents aclnnApplyTopKTopP: top-k, renormalise, then top-p.

    Values that tie with the k-th stay, and the cut of top-p is taken from the small end, so the
    nucleus differs from the one that SGLang takes from sorted probabilities.
    """
    assert logits.dim() == 2
    assert p.shape == k.shape == logits.shape[:1]
    assert p.dtype == logits.dtype, "the operator takes p in the type of logits"
    assert k.dtype == torch.int32
    assert bool(((k >= 1) & (k <= 1024) & (k <= logits.shape[1])).all())
    values, indices = logits.sort(dim=-1, stable=True)
    threshold = values.gather(1, (logits.shape[1] - k.long()).unsqueeze(1))
    values = values.masked_fill(values < threshold, -torch.inf)
    masked = values.softmax(dim=-1).cumsum(dim=-1) <= 1 - p.unsqueeze(1)
    masked[:, -1] = False
    values = values.masked_fill(masked, -torch.inf)
    return torch.empty_like(values).scatter_(1, indices, values)


def sampling_info(requests: Sequence[Request]) -> SimpleNamespace:
    """Build what `SamplingBatchInfo.from_schedule_batch` builds, in the same types."""
    unseeded = requests[0].seed is None
    assert all((request.seed is None) is unseeded for request in requests)
    return SimpleNamespace(
        temperatures=torch.tensor([[request.temperature] for request in requests]),
        top_ks=torch.tensor([request.top_k for request in requests], dtype=torch.int32),
        top_ps=torch.tensor([request.top_p for request in requests]),
        min_ps=torch.tensor([request.min_p for request in requests]),
        sampling_seed=None
        if unseeded
        else torch.tensor([request.seed for request in requests], dtype=torch.int64),
        is_all_greedy=all(request.top_k == 1 for request in requests),
        need_top_k_sampling=any(request.top_k != TOP_K_ALL for request in requests),
        need_top_p_sampling=any(request.top_p != 1.0 for request in requests),
        need_min_p_sampling=any(request.min_p > 0 for request in requests),
        has_custom_logit_processor=False,
        grammars=None,
        device="cpu",
    )


_HASHED: dict[tuple[int, int, int], torch.Tensor] = {}


def remembered_hash(
    seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Hash as `murmur_hash32` does, which is slow on a CPU, each long row only once."""
    width = len(columns)
    if width < VOCABULARY:
        return murmur_hash32(seeds, positions, columns)
    keys = [(*key, width) for key in zip(seeds.tolist(), positions.tolist(), strict=True)]
    new = [index for index, key in enumerate(keys) if key not in _HASHED]
    if new:
        rows = murmur_hash32(seeds.to(torch.int64)[new], positions[new], columns)
        _HASHED.update(zip((keys[index] for index in new), rows, strict=True))
    return torch.stack([_HASHED[key] for key in keys])


def random_logits(seed: int, size: int = VOCABULARY, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * scale


LOGITS = random_logits(1)
PLAIN = Request(LOGITS)
SUBJECTS = {
    "plain": PLAIN,
    "warm": replace(PLAIN, temperature=1.7),
    "top-k": replace(PLAIN, top_k=40),
    "top-p": replace(PLAIN, top_p=0.8),
    "top-k-and-top-p": replace(PLAIN, top_k=40, top_p=0.6),
    "wide-top-k-and-top-p": replace(PLAIN, top_k=1100, top_p=0.9),
    "min-p": replace(PLAIN, min_p=0.05),
    "top-k-and-min-p": replace(PLAIN, top_k=40, min_p=0.2),
    "all": replace(PLAIN, temperature=0.8, top_k=60, top_p=0.7, min_p=0.02),
    "greedy": replace(PLAIN, top_k=1),
}
OTHERS = [Request(random_logits(seed), seed=seed, position=seed) for seed in range(2, 6)]
NEIGHBOURS = {
    "simple": OTHERS,
    "fused-top-k": [replace(other, top_k=50) for other in OTHERS],
    "fused-both": [replace(other, top_k=30, top_p=0.5) for other in OTHERS],
    "fused-min-p": [replace(other, top_k=30, min_p=0.1) for other in OTHERS],
    "sorted-top-p": [replace(other, top_p=0.9) for other in OTHERS],
    "sorted-top-k": [replace(other, top_k=1025) for other in OTHERS],
    "sorted-min-p": [replace(other, min_p=0.1) for other in OTHERS],
    "mixed": [
        replace(OTHERS[0], top_k=1),
        replace(OTHERS[1], top_p=0.1),
        replace(OTHERS[2], min_p=0.3, top_k=1024),
        OTHERS[3],
    ],
}


@cache
def machine(version: str, *, fused: bool = True) -> Machine:
    tree = release_tree(version) if version in NATIVE else patched_tree(version)
    return Machine(tree, fused=fused)


@cache
def alone(version: str, subject: str) -> list[int]:
    """Return the subject's tokens for every seed, each drawn in a batch of its own."""
    return [machine(version).draw([seeded])[0] for seeded in with_seeds(SUBJECTS[subject])]


def with_seeds(request: Request, count: int = SEEDS) -> list[Request]:
    """Return the request once for each seed; positions vary a little as well."""
    seeds = [seed * 2_654_435_761 % 2**63 for seed in range(count)]
    return [replace(request, seed=seed, position=index % 5) for index, seed in enumerate(seeds)]


def shuffled(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def draw_among(
    on: Machine, subjects: list[Request], neighbours: list[Request], **options: Any
) -> list[int]:
    """Draw the subjects in one batch with their neighbours, in an order of no meaning."""
    batch = [*subjects, *neighbours]
    order = shuffled(len(batch), len(batch))
    tokens = on.draw([batch[index] for index in order], **options)
    found = dict(zip(order, tokens, strict=True))
    return [found[index] for index in range(len(subjects))]


@pytest.fixture(autouse=True)
def _torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    # Starting threads costs more than these tensors do.
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("version", PATCHED)
class TestOwnAffair:
    """A token depends on the request's logits, parameters, seed and position only."""

    @pytest.mark.parametrize("neighbours", NEIGHBOURS)
    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_neighbours_change_nothing(self, version: str, subject: str, neighbours: str) -> None:
        on = machine(version)
        drawn = draw_among(on, with_seeds(SUBJECTS[subject]), NEIGHBOURS[neighbours])
        assert drawn == alone(version, subject)

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_neighbours_change_nothing_without_the_fused_operator(
        self, version: str, subject: str
    ) -> None:
        """Top-k with top-p is another nucleus on such a machine, but the same in every batch."""
        on = machine(version, fused=False)
        subjects = with_seeds(SUBJECTS[subject], 60)
        expected = [on.draw([each])[0] for each in subjects]
        for neighbours in NEIGHBOURS.values():
            assert draw_among(on, subjects, neighbours) == expected
        if subject in ("plain", "warm", "top-k", "top-p", "min-p", "greedy"):
            assert expected == alone(version, subject)[:60]

    @pytest.mark.parametrize("original", [False, True])
    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_logprobs_change_nothing(
        self,
        version: str,
        subject: str,
        original: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        on = machine(version)
        monkeypatch.setattr(on.module, "SGLANG_RETURN_ORIGINAL_LOGPROB", original)
        request = SUBJECTS[subject]
        subjects = with_seeds(request)
        tokens, output = on.forward(subjects, logprobs=True)
        assert tokens == alone(version, subject)
        among = draw_among(on, subjects, NEIGHBOURS["mixed"], logprobs=True)
        assert among == alone(version, subject)
        greedy = request.top_k == 1
        logits = request.logits if original or greedy else request.logits / request.temperature
        expected = torch.log_softmax(logits, dim=-1)[tokens]
        torch.testing.assert_close(output.next_token_logprobs, expected)

    def test_the_global_generator_is_neither_used_nor_moved(
        self, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise AssertionError("torch.multinomial was called with seeds")

        monkeypatch.setattr(torch, "multinomial", refuse)
        for subject, neighbours in (("plain", "simple"), ("top-k", "fused-both"), ("all", "mixed")):
            for seed in (0, 1, 99):
                torch.manual_seed(seed)
                state = torch.get_rng_state()
                drawn = draw_among(
                    machine(version), with_seeds(SUBJECTS[subject]), NEIGHBOURS[neighbours]
                )
                assert drawn == alone(version, subject)
                assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("subject", ["plain", "warm", "top-p", "min-p"])
    def test_half_precision_logits(self, version: str, subject: str) -> None:
        """Without the fused operator: these releases hand it a top-p of another type."""
        on = machine(version)

        def half(request: Request) -> Request:
            return replace(request, logits=request.logits.bfloat16())

        subjects = with_seeds(half(SUBJECTS[subject]), 30)
        expected = [on.draw([each])[0] for each in subjects]
        for name in ("simple", "sorted-top-p", "sorted-min-p"):
            others = [half(each) for each in NEIGHBOURS[name]]
            assert draw_among(on, subjects, others) == expected, name

    @pytest.mark.parametrize("neighbours", NEIGHBOURS)
    def test_a_row_without_top_p_keeps_its_tail(self, version: str, neighbours: str) -> None:
        """Where the running sum is rounded past 1, a nucleus of 1.0 must not cut anything."""
        on = machine(version)
        logits, token = logits_with_sum_past_one()
        rare = replace(PLAIN, logits=logits, seed=12345)
        on.hash = favouring(seed=12345, column=token, value=LARGEST_HASH - 1)
        try:
            assert on.draw([rare]) == [token]
            others = [
                replace(other, logits=random_logits(other.position, len(logits)))
                for other in NEIGHBOURS[neighbours]
            ]
            assert draw_among(on, [rare], others) == [token]
        finally:
            on.hash = remembered_hash

    @pytest.mark.parametrize("neighbours", NEIGHBOURS)
    @pytest.mark.parametrize("top_k", [1, 2, 3, 40])
    def test_ties_are_cut_the_same_in_every_batch(
        self, version: str, neighbours: str, top_k: int
    ) -> None:
        on = machine(version)
        logits = LOGITS.round()
        subjects = with_seeds(replace(PLAIN, logits=logits, top_k=top_k), 60)
        expected = [on.draw([each])[0] for each in subjects]
        assert draw_among(on, subjects, NEIGHBOURS[neighbours]) == expected

    @pytest.mark.parametrize("neighbours", NEIGHBOURS)
    @pytest.mark.parametrize("fused", [True, False])
    def test_a_greedy_request_takes_the_first_of_tied_logits(
        self, version: str, fused: bool, neighbours: str
    ) -> None:
        """As it does among greedy requests, by argmax; logits of a bfloat16 head often tie."""
        on = machine(version, fused=fused)
        logits = LOGITS.clone()
        tied = logits.topk(3).indices
        logits[tied] = logits.max()
        subjects = with_seeds(replace(PLAIN, logits=logits, top_k=1), 20)
        assert on.draw(subjects) == [int(tied.min())] * 20
        drawn = draw_among(on, subjects, NEIGHBOURS[neighbours])
        assert drawn == [int(tied.min())] * 20

    def test_the_same_batch_twice(self, version: str) -> None:
        """The filters may write into their arguments, which live as long as the batch."""
        on = machine(version)
        batch = [*with_seeds(PLAIN, 40), *NEIGHBOURS["mixed"]]
        info = sampling_info(batch)
        first = on.draw(batch, info=info)
        assert on.draw(batch, info=info) == first
        assert first[:40] == alone(version, "plain")[:40]

    def test_seed_and_position_both_matter(self, version: str) -> None:
        on = machine(version)
        for subject in ("plain", "top-k", "top-p", "min-p"):
            request = SUBJECTS[subject]
            by_seed = on.draw([replace(request, seed=seed) for seed in range(200)])
            by_position = on.draw([replace(request, position=step) for step in range(200)])
            by_high_word = on.draw([replace(request, seed=seed << 32) for seed in range(200)])
            for tokens in (by_seed, by_position, by_high_word):
                assert len(set(tokens)) > 10
            assert by_seed != by_position


@pytest.mark.parametrize("version", NATIVE)
def test_the_gap_of_native_releases_is_seen(version: str) -> None:
    """`neighbour_dependent_draw`: the comparisons above can fail."""
    drawn = draw_among(machine(version), with_seeds(PLAIN), NEIGHBOURS["sorted-top-p"])
    differing = sum(a != b for a, b in zip(drawn, alone(version, "plain"), strict=True))
    assert differing > SEEDS // 2


# Twelve tokens, none expected less than about a hundred times in DRAWS.
SMALL = torch.log(
    torch.tensor([30.0, 1.0, 14.0, 0.5, 9.0, 20.0, 3.0, 2.0, 0.75, 12.0, 6.0, 1.75]) / 100
)
DISTRIBUTIONS = {
    "simple": Request(SMALL),
    "simple-warm": Request(SMALL * 0.7, temperature=0.7),
    "fused": Request(SMALL, top_k=7),
    "fused-top-p": Request(SMALL, top_k=12, top_p=0.75),
    "fused-min-p": Request(SMALL, top_k=12, min_p=0.15),
    "sorted": Request(SMALL, top_p=0.75),
    "sorted-min-p": Request(SMALL, min_p=0.15),
    "sorted-both": Request(SMALL, top_p=0.8, min_p=0.15),
}
# How many of SMALL's tokens each of them keeps.
FILTERED = {
    "simple": 12,
    "simple-warm": 12,
    "fused": 7,
    "fused-top-p": 4,
    "fused-min-p": 6,
    "sorted": 4,
    "sorted-min-p": 6,
    "sorted-both": 5,
}
VARYING = {
    "seeds": lambda request, index: replace(request, seed=index * 31 + 5, position=3),
    "positions": lambda request, index: replace(request, seed=42, position=index),
}


def p_value(tokens: Sequence[int], kept: int) -> float:
    """Return how likely these draws are from SMALL's `kept` likeliest tokens."""
    weights = SMALL.double().exp()
    order = weights.argsort(descending=True)[:kept]
    counts = torch.bincount(torch.tensor(tokens), minlength=len(weights))
    if int(counts.sum() - counts[order].sum()):
        return 0.0
    expected = weights[order] / weights[order].sum() * len(tokens)
    return float(chisquare(counts[order].numpy(), expected.numpy()).pvalue)


def draw_many(on: Machine, path: str, vary: str) -> list[int]:
    return on.draw([VARYING[vary](DISTRIBUTIONS[path], index) for index in range(DRAWS)])


@pytest.mark.parametrize("version", PATCHED)
class TestDistribution:
    """Seeded draws follow the model's distribution."""

    @pytest.mark.parametrize("path", DISTRIBUTIONS)
    def test_draws_of_many_seeds_follow_it(self, version: str, path: str) -> None:
        assert p_value(draw_many(machine(version), path, "seeds"), FILTERED[path]) > ACCEPTED

    @pytest.mark.parametrize("path", ["simple", "fused-top-p", "sorted"])
    def test_draws_of_many_positions_follow_it(self, version: str, path: str) -> None:
        tokens = draw_many(machine(version), path, "positions")
        assert p_value(tokens, FILTERED[path]) > ACCEPTED

    @pytest.mark.parametrize("path", ["simple", "fused", "sorted", "sorted-min-p"])
    @pytest.mark.parametrize("variant", ["twice", "never"])
    def test_a_logarithm_too_many_or_too_few_is_rejected(
        self,
        version: str,
        path: str,
        variant: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        on = machine(version)
        drawn = on.module.multinomial_with_seed
        change = torch.log if variant == "twice" else torch.exp
        calls = 0

        def wrong(weights: torch.Tensor, *others: torch.Tensor) -> Any:
            nonlocal calls
            calls += 1
            return drawn(change(weights), *others)

        monkeypatch.setattr(on.module, "multinomial_with_seed", wrong)
        assert p_value(draw_many(on, path, "seeds"), FILTERED[path]) < ACCEPTED
        assert calls == 1

    def test_top_k_and_top_p_together_are_one_of_the_two_nuclei(self, version: str) -> None:
        """The fused operator renormalises between the two, SGLang's sorted path does not."""
        request = Request(SMALL, top_k=3, top_p=0.6)
        tokens = machine(version).draw([replace(request, seed=seed) for seed in range(DRAWS)])
        assert max(p_value(tokens, 2), p_value(tokens, 3)) > ACCEPTED


@pytest.mark.parametrize("version", PATCHED)
class TestLargestHash:
    """A hash of 2**32 - 1 is an ordinary draw, not an infinite advantage."""

    @pytest.mark.parametrize(
        "subject", ["top-k", "top-p", "top-k-and-top-p", "min-p", "all", "wide-top-k-and-top-p"]
    )
    def test_a_filtered_token_never_wins(self, version: str, subject: str) -> None:
        on = machine(version)
        request = replace(SUBJECTS[subject], seed=77)
        filtered = int(LOGITS.argmin())
        on.hash = favouring(77, filtered, LARGEST_HASH)
        try:
            for neighbours in ([], *NEIGHBOURS.values()):
                assert draw_among(on, [request], neighbours) != [filtered]
        finally:
            on.hash = remembered_hash

    def test_an_impossible_token_does_not_win(self, version: str) -> None:
        on = machine(version)
        on.hash = favouring(77, 5, LARGEST_HASH)
        try:
            for impossible in (-torch.inf, -1e4, -80.0):
                logits = LOGITS.clone()
                logits[5] = impossible
                request = replace(PLAIN, logits=logits, seed=77)
                for neighbours in ([], *NEIGHBOURS.values()):
                    assert draw_among(on, [request], neighbours) != [5]
        finally:
            on.hash = remembered_hash

    def test_a_whole_row_of_it_draws_the_likeliest(self, version: str) -> None:
        on = machine(version)
        on.hash = lambda seed, positions, columns: torch.full(
            (len(seed), len(columns)), LARGEST_HASH, dtype=torch.int64
        ).to(torch.uint32)
        try:
            assert on.draw([PLAIN]) == [int(LOGITS.argmax())]
        finally:
            on.hash = remembered_hash


UNSEEDED = {
    "simple": [replace(other, seed=None) for other in NEIGHBOURS["simple"]],
    "fused": [replace(other, seed=None) for other in NEIGHBOURS["fused-both"]],
    "sorted": [replace(other, seed=None) for other in NEIGHBOURS["sorted-top-p"]],
    "sorted-top-k": [replace(other, seed=None) for other in NEIGHBOURS["sorted-top-k"]],
    "sorted-min-p": [replace(other, seed=None) for other in NEIGHBOURS["sorted-min-p"]],
}


@pytest.mark.parametrize("version", PATCHED)
class TestUnseeded:
    """Without a seed nothing is different, except that min-p works."""

    @pytest.mark.parametrize("logprobs", [False, True])
    @pytest.mark.parametrize("fused", [False, True])
    @pytest.mark.parametrize("path", UNSEEDED)
    def test_draws_as_the_original_does(
        self,
        version: str,
        path: str,
        fused: bool,
        logprobs: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen = spy_on_multinomial(monkeypatch)
        results = []
        for on in (original(version, fused=fused), machine(version, fused=fused)):
            calls = on.seeded_calls
            torch.manual_seed(3)
            batch = UNSEEDED[path]
            drawn = [on.forward(batch, logprobs=logprobs) for _ in range(8)]
            attached = [each.next_token_logprobs.tolist() for _, each in drawn if logprobs]
            state = torch.get_rng_state().tolist()
            results.append(([tokens for tokens, _ in drawn], attached, state))
            assert on.seeded_calls == calls
        assert results[0] == results[1]
        assert len(seen) == 16
        for before, after in zip(seen[:8], seen[8:], strict=True):
            assert before[1:] == after[1:]
            assert torch.equal(before[0], after[0])

    def test_min_p_on_the_fused_path_no_longer_fails(
        self, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = [
            replace(other, seed=None, top_k=20, min_p=0.1 * index)
            for index, other in enumerate(OTHERS)
        ]
        with pytest.raises(TypeError):
            original(version).draw(batch)
        seen = spy_on_multinomial(monkeypatch)
        on = machine(version)
        calls = on.fused_calls
        on.draw(batch)
        assert on.fused_calls == calls + 1
        info = sampling_info(batch)
        logits = torch.stack([request.logits for request in batch])
        probabilities = npu_top_k_top_p(logits, info.top_ps, info.top_ks).softmax(dim=-1)
        least = probabilities.amax(dim=-1, keepdim=True) * info.min_ps.unsqueeze(1)
        expected = probabilities.masked_fill(probabilities < least, 0.0)
        assert len(seen) == 1
        torch.testing.assert_close(seen[0][0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("version", PATCHED)
class TestPytorchBackend:
    """The other sampling path of a deterministic server keeps its tokens."""

    @pytest.mark.parametrize("device", ["npu", "cuda"])
    @pytest.mark.parametrize("logprobs", [False, True])
    def test_same_tokens_as_the_original(
        self, version: str, device: Device, logprobs: bool
    ) -> None:
        before = Machine(release_tree(version), device=device, backend="pytorch")
        after = Machine(patched_tree(version), device=device, backend="pytorch")
        for name, subject in SUBJECTS.items():
            if subject.min_p:
                continue
            seeded = with_seeds(subject, 50)
            expected = before.draw(seeded, logprobs=logprobs)
            assert after.draw(seeded, logprobs=logprobs) == expected, name
        for batch in UNSEEDED.values():
            torch.manual_seed(5)
            expected = before.draw(batch, logprobs=logprobs)
            torch.manual_seed(5)
            assert after.draw(batch, logprobs=logprobs) == expected

    @pytest.mark.parametrize("device", ["npu", "cuda"])
    def test_compiled_elsewhere_and_never_on_an_npu(self, version: str, device: Device) -> None:
        for backend in ("pytorch", "ascend") if device == "npu" else ("pytorch",):
            on = Machine(patched_tree(version), device=device, backend=backend)
            on.draw(with_seeds(PLAIN, 3))
            on.draw(with_seeds(SUBJECTS["top-k"], 3))
            compiled = [each for each in on.execution.compiled if each.calls and not each.disabled]
            names = [each.__name__ for each in compiled]
            assert names == ([] if device == "npu" else ["multinomial_with_seed"])


@pytest.mark.parametrize("version", PATCHED)
def test_a_caller_that_forgets_the_positions_fails(version: str) -> None:
    """A fork's override must not draw at the same position for ever."""
    module = machine(version).module
    for function in (
        module.Sampler._forward_ascend_backend,
        module.Sampler._sample_from_logits,
        module.top_k_top_p_min_p_sampling_from_logits_ascend,
    ):
        last = list(inspect.signature(function).parameters.values())[-1]
        assert last.name == "positions"
        assert last.default is inspect.Parameter.empty


ASCEND_PATH = (
    "forward",
    "_forward_ascend_backend",
    "_sample_from_logits",
    "top_k_top_p_min_p_sampling_from_logits_ascend",
    "multinomial_with_seed",
)


@pytest.mark.parametrize("version", ALIKE)
def test_the_releases_between_run_the_same_code(version: str) -> None:
    assert ascend_path(version) in [ascend_path(executed) for executed in PATCHED]


@cache
def ascend_path(version: str) -> dict[str, str]:
    """Return the code of the functions that draw on the Ascend backend, comments left out."""
    file = patched_tree(version) / "sglang" / "srt" / "layers" / "sampler.py"
    return {
        node.name: ast.unparse(node)
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.FunctionDef) and node.name in ASCEND_PATH
    }


@cache
def original(version: str, *, fused: bool = True) -> Machine:
    return Machine(release_tree(version), fused=fused)


def spy_on_multinomial(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the arguments of `torch.multinomial`, which goes on working."""
    seen: list[tuple[Any, ...]] = []
    real = torch.multinomial

    def spy(weights: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        seen.append((weights.clone(), arguments, options))
        return real(weights, *arguments, **options)

    monkeypatch.setattr(torch, "multinomial", spy)
    return seen


def favouring(seed: int, column: int, value: int) -> Hash:
    """Return a hash that gives one column of the rows with that seed `value`, else a low one."""

    def hashed(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        drawn = remembered_hash(seeds, positions, columns).to(torch.int64)
        rows = seeds.to(torch.int64) == seed
        drawn[rows] >>= 24
        drawn[rows, column] = value
        return drawn.to(torch.uint32)

    return hashed


@cache
def logits_with_sum_past_one() -> tuple[torch.Tensor, int]:
    """Return logits whose sorted probabilities add up to more than 1 before the last token.

    And the likeliest of the tokens that a nucleus of 1.0 then leaves out.
    """
    for seed in range(200):
        logits = random_logits(seed, 20_000, 3.0)
        ordered, order = torch.softmax(logits, dim=-1).sort(descending=True)
        left_out = (ordered.cumsum(0) - ordered > 1.0).nonzero()
        if len(left_out) > 100:
            return logits, int(order[left_out[0, 0]])
    raise AssertionError("no running sum was rounded past 1")
