"""Run a tree's sampler on one of its backends, and demand what it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any

import torch

from sgl_npu_patch.codemods.upstream.gaps import PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS
from sgl_npu_patch.codemods.upstream.symbols import ASCEND
from sgl_npu_patch.simulator.sglang import Device
from sgl_npu_patch.verify.behaviour import Failed, Run, Subject, check
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    NEIGHBOURS,
    SUBJECTS,
    Machine,
    Request,
    draw_among,
    is_fused,
    random_logits,
    remembered_hash,
    with_seeds,
)
from sgl_npu_patch.verify.findings import NotApplicable

ORIGINAL_LOGPROB = "SGLANG_RETURN_ORIGINAL_LOGPROB"
LARGEST_HASH = 2**32 - 1
SEEDS = 60
PYTORCH = "pytorch"
_CALL = "Sampler.forward"


class Trial:
    """One tree, with what several checks need to know of it."""

    def __init__(self, package: Path, base: Path | None, backend: str) -> None:
        self.backend = backend
        self._package = package
        self._base = base
        self._machines: dict[tuple[Any, ...], Machine] = {}
        self._alone: dict[tuple[str, bool], list[int]] = {}

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether the fused operator is there, on each kind of machine that matters."""
        return (True, False) if self.backend == ASCEND else (True,)

    def machine(self, *, fused: bool = True, device: Device = "npu", backend: str = "") -> Machine:
        """Return the tree's sampler on a kind of machine."""
        return self._made(self._package, fused, device, backend)

    def original(self, *, fused: bool = True, device: Device = "npu", backend: str = "") -> Machine:
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
            self.backend != ASCEND
            or self._draws_fused_min_p
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
        backend = backend or self.backend
        key = (package, fused, device, backend)
        if key not in self._machines:
            self._machines[key] = Machine(package, fused=fused, device=device, backend=backend)
        return self._machines[key]


@cache
def _trial(package: Path, base: Path | None, backend: str) -> Trial:
    return Trial(package, base, backend)


def sampler_check(
    *, gap: str = "", backends: tuple[str, ...] = (ASCEND, PYTORCH)
) -> Callable[[Callable[[Trial], None]], Run]:
    """Declare a check of a tree's backends, run apart from the process's random state.

    It is one of the seam sampler on "ascend" and one of seeded_sampling on "pytorch".

    Args:
        gap: what a failure on "ascend" is; on "pytorch" every failure is the same gap.
    """

    def declare(run: Callable[[Trial], None]) -> Run:
        @wraps(run)
        def on_ascend(subject: Subject) -> None:
            if "sampler" in subject.left_out:
                raise NotApplicable(
                    "the tree keeps upstream's sampler, and the handler keeps its deterministic "
                    f"server off the Ascend path (seam sampler: {subject.left_out['sampler']})"
                )
            _run(run, subject, ASCEND)

        @wraps(run)
        def on_pytorch(subject: Subject) -> None:
            _run(run, subject, PYTORCH)

        if ASCEND in backends:
            check("sampler", gap=gap)(on_ascend)
        if PYTORCH in backends:
            check("seeded_sampling", gap=PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS.name)(on_pytorch)
        return on_ascend

    return declare


def _run(run: Callable[[Trial], None], subject: Subject, backend: str) -> None:
    with _settled():
        try:
            run(_trial(subject.package, subject.base, backend))
        except Failed as failed:
            if failed.code.startswith(_CALL):
                failed.code = f'# sampling_backend="{backend}"\n{failed.code}'
            raise


@contextmanager
def _settled() -> Iterator[None]:
    threads = torch.get_num_threads()
    # Starting threads costs more than these tensors do.
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def demand_alone(
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
    demand_same(drawn, expected, f"beside {name!r} requests{where}", shown_call(seeded[0], name))


def demand_same(drawn: list[int], expected: list[int], when: str, code: str) -> None:
    differing = [i for i, pair in enumerate(zip(drawn, expected, strict=True)) if len({*pair}) > 1]
    if differing:
        first = differing[0]
        raise Failed(
            f"{when}, {len(differing)} of {len(drawn)} requests get other tokens",
            expected=f"token {expected[first]}",
            found=f"token {drawn[first]}",
            code=code,
        )


def shown_call(request: Request, neighbours: str = "") -> str:
    """Write down the call that shows a failure."""
    call = f"{_CALL}([{_told(request)}])"
    if neighbours:
        beside = ", ".join(_told(other) for other in NEIGHBOURS[neighbours])
        call += f"\n{_CALL}([{_told(request)}, {beside}])"
    return call


def _told(request: Request) -> str:
    given = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name != "logits" and getattr(request, field.name) != field.default
    }
    told = {"seed": request.seed, "position": request.position, **given}
    return f"dict({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def half(request: Request) -> Request:
    return replace(request, logits=request.logits.bfloat16())


@contextmanager
def attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def multinomial_calls() -> Iterator[list[tuple[Any, ...]]]:
    """Record the arguments of `torch.multinomial`, which goes on working."""
    seen: list[tuple[Any, ...]] = []
    real = torch.multinomial

    def spy(weights: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        seen.append((weights.clone(), arguments, options))
        return real(weights, *arguments, **options)

    with attribute(torch, "multinomial", spy):
        yield seen


def largest_everywhere(
    seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    shape = (len(seed), len(columns))
    return torch.full(shape, LARGEST_HASH, dtype=torch.int64).to(torch.uint32)


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
    raise NotApplicable("no running sum is rounded past 1 on this processor")


def compiled(on: Machine) -> list[str]:
    return sorted(
        each.__name__ for each in on.execution.compiled if each.calls and not each.disabled
    )
