"""Execute a tree's sampler on batches made up here, with the little around it that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from sgl_npu_patch.codemods.upstream import modules, symbols
from sgl_npu_patch.simulator.modules import modules_of, modules_of_class
from sgl_npu_patch.simulator.murmur import murmur_hash32
from sgl_npu_patch.simulator.sglang import VENDORED, Device, Execution
from sgl_npu_patch.simulator.torch_npu import LARGEST_TOP_K, top_k_top_p

TOP_K_ALL = 1 << 30
VOCABULARY = 1200

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


class Info(SimpleNamespace):
    """A `SamplingBatchInfo`; what a newer release has added to it is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Machine:
    """A tree's sampler, and what it asked for; `hash` may be replaced."""

    def __init__(
        self,
        tree: Path,
        *,
        device: Device = "npu",
        backend: str = "ascend",
        fused: bool = True,
    ) -> None:
        self.hash: Hash = remembered_hash
        self.hashed: list[tuple[list[int], list[int]]] = []
        self.fused_calls = 0
        self.token_type: torch.dtype | None = None
        torch_npu = ModuleType("torch_npu")
        if fused:
            vars(torch_npu)["npu_top_k_top_p"] = self._fused
        provide = {"torch_npu": torch_npu} if device == "npu" else {}
        names = {**surroundings(backend), "murmur_hash32": self._hash}
        self.execution = Execution(tree, device, provide, sampler_modules(tree), names)
        with self.execution:
            self.module: Any = self.execution.defining(modules.SAMPLER)
            self.sampler: Any = self.execution.value(modules.SAMPLER)()
            self.vendored_hash = self._replace_vendored_hash()

    def _replace_vendored_hash(self) -> Hash | None:
        """Return the hash of the module that a patched tree draws by, which is hashed for too."""
        name = f"{VENDORED}.seeded_sampling"
        if self.execution.file(name) is None:
            return None
        vendored: Any = self.execution.load(name)
        own: Hash = vendored.murmur_hash32
        vendored.murmur_hash32 = self._hash
        return own

    @property
    def seeded_calls(self) -> int:
        """How often seeds were hashed since the list of them was cleared."""
        return len(self.hashed)

    def draw(
        self, requests: Sequence[Request], *, logprobs: bool = False, info: Any = None
    ) -> list[int]:
        """Run `Sampler.forward` on one batch and give its tokens."""
        return self.forward(requests, logprobs=logprobs, info=info)[0]

    def forward(
        self, requests: Sequence[Request], *, logprobs: bool = False, info: Any = None
    ) -> tuple[list[int], SimpleNamespace]:
        """Run `Sampler.forward` on one batch and give its tokens and its output."""
        logits = torch.stack([request.logits for request in requests])
        positions = torch.tensor([request.position for request in requests])
        return self._forward(logits, info or sampling_info(requests), positions, logprobs=logprobs)

    def draw_repeated(
        self, request: Request, seeds: torch.Tensor, positions: torch.Tensor
    ) -> list[int]:
        """Draw a batch of one request, each row with a seed and position of its own."""
        count = len(seeds)
        info = sampling_info([request])
        for name, value in vars(info).items():
            if isinstance(value, torch.Tensor):
                setattr(info, name, value.repeat_interleave(count, dim=0))
        info.sampling_seed = seeds
        return self._forward(request.logits.repeat(count, 1), info, positions)[0]

    def _forward(
        self, logits: torch.Tensor, info: Any, positions: torch.Tensor, *, logprobs: bool = False
    ) -> tuple[list[int], SimpleNamespace]:
        count = len(logits)
        output = SimpleNamespace(next_token_logits=logits)
        with self.execution:
            tokens: torch.Tensor = self.sampler(
                output,
                info,
                logprobs,
                [0] * count,
                [None] * count,
                positions,
            )
        self.token_type = tokens.dtype
        assert tokens.shape == (count,), f"tokens of shape {tuple(tokens.shape)} for {count} rows"
        return tokens.tolist(), output

    @contextmanager
    def hashing(self, hashed: Hash) -> Iterator[None]:
        """Put another hash in the place of the tree's."""
        before, self.hash = self.hash, hashed
        try:
            yield
        finally:
            self.hash = before

    def _hash(self, *arguments: torch.Tensor) -> torch.Tensor:
        self.hashed.append((arguments[0].long().tolist(), arguments[1].tolist()))
        return self.hash(*arguments)

    def _fused(
        self, logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.fused_calls += 1
        return top_k_top_p(logits, p, k)


def sampler_modules(tree: Path) -> list[str]:
    """List the modules of a tree that its sampler consists of."""
    path = (symbols.FORWARD_ASCEND, symbols.SAMPLE_FROM_LOGITS, symbols.SAMPLE_ASCEND)
    methods = (name for symbol in path for name in symbol.names)
    drawn = (symbols.SAMPLE_ASCEND, symbols.SAMPLE_ASCEND_PROBS, symbols.DRAW, modules.LOGPROBS)
    sampler = modules_of_class(tree, modules.SAMPLER, "forward", *methods)
    return [*sampler, *modules_of(tree, *drawn)]


def surroundings(backend: str) -> dict[str, object]:
    """Return what a sampler of any release imports of the server's arguments, by name."""
    server_args = SimpleNamespace(
        enable_nan_detection=False,
        rl_on_policy_target=None,
        enable_deterministic_inference=True,
        sampling_backend=backend,
    )
    groups = SimpleNamespace(
        deterministic=server_args,
        kernel=server_args,
        features=SimpleNamespace(sampling_mask_max_tokens=None),
    )
    return {
        "get_global_server_args": lambda: server_args,
        "get_server_args": lambda: server_args,
        "global_server_args_dict": vars(server_args),
        "get_exec": lambda: groups,
        "get_flags": lambda: server_args,
        "is_dp_attention_enabled": lambda: False,
        "TOP_K_ALL": TOP_K_ALL,
    }


def sampling_info(requests: Sequence[Request]) -> Info:
    """Build what `SamplingBatchInfo.from_schedule_batch` builds, in the same types."""
    unseeded = requests[0].seed is None
    assert all((request.seed is None) is unseeded for request in requests), "seeds of some rows"
    return Info(
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
        npu_top_k_top_p_eligible=is_fused(requests),
        has_custom_logit_processor=False,
        device="cpu",
    )


def is_fused(requests: Iterable[Request]) -> bool:
    """Tell whether a batch may go to the fused operator, by what that takes."""
    return all(1 <= request.top_k <= LARGEST_TOP_K for request in requests)


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


def favouring(seed: int, column: int, value: int) -> Hash:
    """Return a hash that gives one column of the rows with that seed `value`, else a low one."""

    def hashed(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        drawn = remembered_hash(seeds, positions, columns).to(torch.int64)
        rows = seeds.to(torch.int64) == seed
        drawn[rows] >>= 24
        drawn[rows, column] = value
        return drawn.to(torch.uint32)

    return hashed


def random_logits(seed: int, size: int = VOCABULARY, scale: float = 2.0) -> torch.Tensor:
    """Return reproducible logits of one row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * scale


def with_seeds(request: Request, count: int) -> list[Request]:
    """Return the request once for each seed; positions vary a little as well."""
    seeds = [seed * 2_654_435_761 % 2**63 for seed in range(count)]
    return [replace(request, seed=seed, position=index % 5) for index, seed in enumerate(seeds)]


def draw_among(
    on: Machine, subjects: list[Request], neighbours: Sequence[Request], **options: Any
) -> list[int]:
    """Draw the subjects in one batch with their neighbours, in an order of no meaning."""
    batch = [*subjects, *neighbours]
    order = shuffled(len(batch), len(batch))
    tokens = on.draw([batch[index] for index in order], **options)
    found = dict(zip(order, tokens, strict=True))
    return [found[index] for index in range(len(subjects))]


def shuffled(count: int, seed: int) -> list[int]:
    """Return a reproducible order."""
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


LOGITS = random_logits(1)
PLAIN = Request(LOGITS)
SUBJECTS = {
    "plain": PLAIN,
    "warm": replace(PLAIN, temperature=1.7),
    "top-k": replace(PLAIN, top_k=40),
    "top-p": replace(PLAIN, top_p=0.8),
    "top-k-and-top-p": replace(PLAIN, top_k=40, top_p=0.6),
    "wide-top-k-and-top-p": replace(PLAIN, top_k=1100, top_p=0.9),
    "largest-top-k-and-top-p": replace(PLAIN, temperature=20.0, top_k=LARGEST_TOP_K, top_p=0.6),
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
"""Batches that take each of the three paths of the Ascend backend, and one of all of them."""
