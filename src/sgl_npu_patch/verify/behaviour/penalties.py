"""Check that penalties count each token once, by scheduling a tree's own batches step by step.

The scheduler is made up: it only decides when a token is known on the host, which batches are
merged, and who is retracted. What counts and applies penalties is the tree's own code.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sgl_npu_patch.codemods.upstream import modules, symbols
from sgl_npu_patch.codemods.upstream.gaps import PENALTIES_COUNTED_WRONGLY
from sgl_npu_patch.simulator import device
from sgl_npu_patch.simulator.modules import modules_of, parsed
from sgl_npu_patch.simulator.sglang import Execution
from sgl_npu_patch.simulator.stubs import Stub
from sgl_npu_patch.verify.behaviour import Failed, Subject, check
from sgl_npu_patch.verify.findings import NotApplicable

VOCABULARY = 12
STEPS = 9
_PENALTIES = "sglang.srt.sampling.penaltylib"
_NOT_PINNED: dict[str, Any] = {"is_pin_memory_available": lambda *_: False}
_NEITHER = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}


class Open(SimpleNamespace):
    """An object of SGLang's; what a newer release has added to it is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Ready(Exception):
    """Penalties are counted; what else prepares a batch is left out."""


class Batch(Open):
    """A ScheduleBatch."""

    @property
    def model_config(self) -> Any:
        raise _Ready


@dataclass(eq=False)
class Request:
    """One request: its penalties, and what it generated with how many of that on the host."""

    number: int
    penalties: dict[str, float]
    generated: list[int] = field(default_factory=list)
    seen: list[torch.Tensor] = field(default_factory=list)
    req: Any = None

    def __post_init__(self) -> None:
        params = Open(
            temperature=1.0, top_k=1, top_p=1.0, min_p=0.0, sampling_seed=self.number,
            min_new_tokens=0, **{**_NEITHER, **self.penalties},
        )  # fmt: skip
        tokenizer = Open(eos_token_id=0)
        self.req = Open(
            sampling_params=params, tokenizer=tokenizer, origin_input_ids=[1, 2, 3], output_ids=[]
        )

    def logits(self) -> torch.Tensor:
        """Return what a model would give for the next token."""
        seed = 1000 * self.number + len(self.generated)
        drawn = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
        return drawn + torch.linspace(0.0, 1.5, VOCABULARY)

    def penalised(self) -> torch.Tensor:
        """Return that with each generated token counted once."""
        given = {**_NEITHER, **self.penalties}
        counts = torch.bincount(torch.tensor(self.generated, dtype=torch.int64), None, VOCABULARY)
        wanted = self.logits() - given["frequency_penalty"] * counts
        wanted -= given["presence_penalty"] * (counts > 0)
        scale = torch.where(counts > 0, given["repetition_penalty"], 1.0)
        return torch.where(wanted < 0, wanted * scale, wanted / scale)


class Scheduler:
    """Run batches of one tree."""

    def __init__(self, execution: Execution, *, overlap: bool) -> None:
        self.execution = execution
        self.overlap = overlap
        self.info: Any = execution.value(modules.BATCH_INFO)
        self.prepare = _method(execution, symbols.PREPARE_FOR_DECODE, torch=torch)
        # A method of its own since 0.5.14.
        counts = modules.COUNT_PENALTIES
        has = counts.name.encode() in _file(execution, counts).read_bytes()
        self.count = _method(execution, counts, torch=torch, **_NOT_PINNED) if has else None
        self.running: Any = None
        self.requests: list[Request] = []
        self.waiting: list[tuple[Request, int]] = []

    def prefill(self, *requests: Request) -> None:
        """Run the prompts of some requests, and what they generated before; then merge them."""
        lengths = [3 + len(r.req.output_ids) for r in requests]
        batch = Batch(
            reqs=[r.req for r in requests], device="npu", enable_overlap=self.overlap,
            spec_algorithm=_Plain(), seq_lens_cpu=torch.tensor(lengths), extend_lens=lengths,
            forward_mode=SimpleNamespace(is_decode=lambda: False),
        )  # fmt: skip
        for request in requests:
            del request.generated[len(request.req.output_ids) :]
        batch.sampling_info = self.info.from_schedule_batch(batch, VOCABULARY)
        inputs = [[*r.req.origin_input_ids, *r.req.output_ids] for r in requests]
        tokens = self.forward(batch, requests, [token for each in inputs for token in each])
        if self.running is None:
            self.running, self.requests = batch, [*requests]
        else:
            self.running.sampling_info.merge_batch(batch.sampling_info)
            self.running.reqs = [*self.running.reqs, *batch.reqs]
            ends = (self.running.seq_lens_cpu, batch.seq_lens_cpu)
            self.running.seq_lens_cpu = torch.cat(ends)
            self.requests += requests
        self.receive()
        self.waiting += zip(requests, tokens, strict=True)
        if not self.overlap:
            self.receive()

    def decode(self) -> None:
        """Run one step, prepared before the last one's tokens are known with overlap."""
        batch = self.running
        newest = [request.generated[-1] for request in self.requests]
        batch.output_ids = torch.tensor(newest, device="npu")
        if self.count is not None:
            batch.cumulate_penalty_output_tokens = partial(self.count, batch)
        with suppress(_Ready):
            self.prepare(batch)
        batch.forward_mode = SimpleNamespace(is_decode=lambda: True)
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        tokens = self.forward(batch, self.requests, newest)
        self.receive()
        self.waiting += zip(self.requests, tokens, strict=True)
        if not self.overlap:
            self.receive()

    def receive(self) -> None:
        """Learn on the host what was sampled."""
        for request, token in self.waiting:
            if request in self.requests:
                request.req.output_ids.append(token)
        self.waiting = []

    def retract(self, request: Request) -> None:
        """Take a request out; what is not on the host yet is forgotten."""
        keep = [row for row, each in enumerate(self.requests) if each is not request]
        self.requests = [self.requests[row] for row in keep]
        self.running.reqs = [each.req for each in self.requests]
        self.running.seq_lens_cpu = self.running.seq_lens_cpu[keep]
        self.running.sampling_info.filter_batch(keep, torch.tensor(keep, device="npu"))

    def forward(self, batch: Any, requests: Sequence[Request], inputs: list[int]) -> list[int]:
        """Sample the next token of each request; inputs are resolved after the pass is copied."""
        batch.input_ids = torch.full((len(inputs),), -1, device="npu")
        info = self.copied(batch) if self.overlap else batch.sampling_info
        batch.input_ids.copy_(torch.tensor(inputs))
        logits = torch.stack([request.logits() for request in requests]).to("npu")
        info.apply_logits_bias(logits)
        tokens: list[int] = logits.argmax(-1).tolist()
        for request, row, token in zip(requests, logits.cpu(), tokens, strict=True):
            wanted = request.penalised()
            if not torch.allclose(row, wanted, atol=1e-4):
                after = f"after {request.generated}"
                raise Failed(
                    f"request {request.number} with {request.penalties} is penalised otherwise "
                    "than by each of its tokens once",
                    expected=f"{after}: {_shown(wanted)}",
                    found=f"{after}: {_shown(row)}",
                    code=f"{symbols.PREPARE_FOR_DECODE}()",
                )
            request.generated.append(token)
        return tokens

    def copied(self, batch: Any) -> Any:
        """Return what the tree hands to a forward pass."""
        if hasattr(self.info, symbols.FORWARD_COPY.name):
            return batch.sampling_info.copy_for_forward()
        hand_over = _method(self.execution, symbols.FORWARD_COPY, dataclasses=dataclasses)
        passed = Open(sampling_info=batch.sampling_info, seq_lens=batch.seq_lens_cpu)
        hand_over(Stub("worker"), passed)
        return passed.sampling_info


def _shown(logits: torch.Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in logits.tolist())


class _Plain:
    """The absence of speculative decoding."""

    def is_none(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[[], bool]:
        return lambda: False


def _method(execution: Execution, symbol: symbols.Symbol, **given: object) -> Callable[..., Any]:
    """Execute one method alone, all that it uses beside what is given being stubs."""
    file = _file(execution, symbol)
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.FunctionDef) or node.name not in symbol.names:
            continue
        if "penalizer_orchestrator" in ast.unparse(node):
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            scope: dict[str, Any] = {n: Stub(n) for n in used.difference(dir(builtins))}
            scope |= {"is_npu": lambda: True, **given}
            exec(compile(ast.Module([node], []), str(file), "exec"), scope)  # noqa: S102
            method: Callable[..., Any] = scope[node.name]
            return method
    raise NotApplicable(f"{file.name} has no {symbol} that knows penalties")


def _file(execution: Execution, symbol: symbols.Symbol) -> Path:
    """Return the file where SGLang's releases have a method, whose name others have too."""
    for module in symbol.modules:
        file = execution.file(module)
        if file is not None:
            return file
    raise NotApplicable(f"the tree lacks {' and '.join(symbol.modules)}")


@contextmanager
def scheduler(subject: Subject, *, overlap: bool = True) -> Iterator[Scheduler]:
    """Give a scheduler of a tree's own batches on a simulated NPU."""
    device.install()
    torch.set_num_threads(1)
    arguments = Open(
        enable_deterministic_inference=True, enable_custom_logit_processor=False, device="npu"
    )
    groups = Open(deterministic=arguments, features=arguments, kernel=arguments)
    known = {
        "global_server_args_dict": vars(arguments),
        "get_global_server_args": lambda: arguments,
        "get_server_args": lambda: arguments,
        "get_exec": lambda: groups,
        **_NOT_PINNED,
        "get_compiler_backend": lambda *_: "eager",
        "ScheduleBatch": Batch,
        "TOP_K_ALL": 1 << 30,
    }
    real = [*modules_of(subject.package, modules.BATCH_INFO), _PENALTIES]
    with Execution(subject.package, "npu", names=known, real=real) as execution:
        yield Scheduler(execution, overlap=overlap)


PENALTIES: tuple[dict[str, float], ...] = (
    {"frequency_penalty": 0.75},
    {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"frequency_penalty": 1.25, "presence_penalty": 0.5},
    {},
)


def _requests(subject: Subject) -> list[Request]:
    """Return requests with each kind of penalty that the tree has."""
    given = [dict(each) for each in PENALTIES]
    if "repetition" in (subject.package / "srt/sampling/penaltylib/__init__.py").read_text("utf-8"):
        given[1]["repetition_penalty"] = 1.5
    return [Request(number, each) for number, each in enumerate(given)]


@check("penalties", gap=PENALTIES_COUNTED_WRONGLY.name)
def each_token_counts_once(subject: Subject) -> None:
    """Each token of a request counts once before the next is sampled, whoever joins."""
    for overlap in (True, False):
        first, second, third, other = _requests(subject)
        with scheduler(subject, overlap=overlap) as run:
            run.prefill(first)
            for _ in range(STEPS):
                run.decode()
            run.prefill(other, second)
            run.decode()
            run.prefill(third)
            for _ in range(STEPS):
                run.decode()
            run.retract(other)
            run.decode()
            run.decode()


@check("penalties", gap=PENALTIES_COUNTED_WRONGLY.name)
def a_retracted_request_keeps_its_counts(subject: Subject) -> None:
    """What a request generated before it was retracted counts when it runs again."""
    for overlap in (True, False):
        first, second, _, other = _requests(subject)
        with scheduler(subject, overlap=overlap) as run:
            run.prefill(first, second)
            for _ in range(STEPS):
                run.decode()
            run.retract(second)
            run.decode()
            run.prefill(other, second)
            for _ in range(STEPS):
                run.decode()


@check("penalties")
def the_order_is_fixed(subject: Subject) -> None:
    """Penalties are applied in an order of their own, not in that of a set."""
    with scheduler(subject) as run:
        run.prefill(*_requests(subject))
        kinds = [*run.running.sampling_info.penalizer_orchestrator.penalizers]
    places = [(getattr(kind, "is_multiplicative", False), kind.__name__) for kind in kinds]
    if places != sorted(places):
        found = ", ".join(kind.__name__ for kind in kinds)
        raise Failed("penalties are in no order", found=found, code="penalizers")
