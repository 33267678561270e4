"""Drive a tree's own scheduler in this process: its event loop, its model, its sampler, its cache.

Only the receiving of requests is replaced, so that a request joins at a chosen turn of the loop and
the composition of every batch is chosen too.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from sgl_npu_patch.verify.findings import NotApplicable

TURNS = 5000
"""After how many turns of the loop a run is given up."""

OPTIONS: Mapping[str, Any] = {
    "device": "npu",
    "attention_backend": "ascend",
    "sampling_backend": "ascend",
    "enable_deterministic_inference": True,
    "disable_cuda_graph": True,
    "grammar_backend": "none",
    "mem_fraction_static": 0.5,
    "max_running_requests": 32,
    "log_level": "error",
    "skip_server_warmup": True,
    "random_seed": 1,
}
"""How a deterministic server is launched on Ascend, without what a tiny model does not need."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request, as a client makes it.

    Attributes:
        ids: the prompt's tokens.
        params: what `SamplingParams` takes.
        at: the turn of the event loop at which it comes.
        logprobs: those of the output are asked for.
        start: from which position those of the prompt are asked for; -1 for none.
        top: how many of the most probable tokens are asked for at each position.
        priority: what the scheduler orders requests by, if it was told to.
        abort: the turn at which its client gives it up; -1 for never.
    """

    ids: tuple[int, ...]
    params: Mapping[str, Any]
    at: int = 0
    logprobs: bool = True
    start: int = -1
    top: int = 0
    priority: int | None = None
    abort: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a request got, and how often it was taken out of the batch on the way."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    inputs: tuple[float | None, ...]
    cached: int
    retracted: int
    top: tuple[tuple[float, int], ...] = ()


class _Done(Exception):
    """Leave the event loop."""


class _Receiver:
    """Stand in for the scheduler's receiver, from 0.5.14 on an object of its own."""

    def __init__(self, inner: Any, receive: Any) -> None:
        self._inner = inner
        self.recv_requests = receive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Engine:
    """A scheduler that was started, and runs one set of requests after the other.

    Attributes:
        modes: what kinds of batches ran since it was last emptied: EXTEND, DECODE, MIXED.

    Args:
        sizes: options that the server may change.

    Raises:
        NotApplicable: the release does not know one of the other options, or sets it back.
    """

    def __init__(self, model: str, sizes: Mapping[str, Any] | None = None, **options: Any) -> None:
        arguments: Any = import_module("sglang.srt.server_args")
        kind: Any = import_module("sglang.srt.managers.scheduler").__dict__["Scheduler"]
        known = inspect.signature(arguments.ServerArgs).parameters
        asked = {**OPTIONS, "model_path": model, **(sizes or {}), **options}
        self.arguments = arguments.ServerArgs(**{k: v for k, v in asked.items() if k in known})
        if hasattr(self.arguments, "resolve_once"):
            self.arguments.resolve_once()
        if hasattr(self.arguments, "check_server_args"):
            self.arguments.check_server_args()
        for name, value in options.items():
            if name not in known:
                raise NotApplicable(f"the release has no option {name}")
            if self.option(name) != value:
                told = f"the server sets {name} from {value} to {self.option(name)}"
                raise NotApplicable(told)
        self._publish()
        given = {
            "server_args": self.arguments,
            "port_args": arguments.PortArgs.init_new(self.arguments),
            "dp_rank": None,
            **dict.fromkeys(
                ("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank"), 0
            ),
        }
        taken = inspect.signature(kind.__init__).parameters
        self.scheduler = kind(**{name: value for name, value in given.items() if name in taken})
        self._numbers = itertools.count()
        self._running: dict[str, Any] = {}
        self._plan: list[tuple[int, Any]] = []
        self._turn = self._idle = 0
        self.modes: set[str] = set()
        self._watch()

    def option(self, name: str) -> Any:
        """Return what the server makes of one of its options."""
        # From 0.5.19 on it declares what it changes, beside the arguments.
        view = getattr(import_module("sglang.srt.server_args"), "resolving_view", lambda same: same)
        return getattr(view(self.arguments), name)

    def takes_large_seeds(self) -> bool:
        """Report whether the release keeps seeds in 64 bits; others end at a larger one."""
        kind: Any = import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo
        text = inspect.getsource(kind.from_schedule_batch)
        return "int32" not in text.partition("sampling_seed")[2].partition("device=")[0]

    def text(self, token: int) -> str:
        """Return what a token stands for."""
        return str(self.scheduler.tokenizer.decode([token]))

    def run(self, requests: Sequence[Request], *, flush: bool = True) -> list[Answer]:
        """Run requests together, and return the answer of each.

        Args:
            flush: forget all prefixes that earlier requests left in the cache.
        """
        if flush:
            self._flush()
        self._running, self._turn, self._idle = {}, 0, 0
        # An abort names all requests by what their names begin with: none begins another.
        names = [f"request-{next(self._numbers)}." for _ in requests]
        named = [*zip(names, requests, strict=True)]
        self._plan = [(request.at, self._tokenized(name, request)) for name, request in named]
        self._plan += [
            (request.abort, self._io("AbortReq")(rid=name))
            for name, request in named
            if request.abort >= 0
        ]
        scheduler = self.scheduler
        try:
            if hasattr(scheduler, "run_event_loop"):
                scheduler.run_event_loop()
            elif scheduler.enable_overlap:
                scheduler.event_loop_overlap()
            else:
                scheduler.event_loop_normal()
        except _Done:
            pass
        return [_answer(self._running[name], request) for name, request in named]

    def _io(self, name: str) -> Any:
        return getattr(import_module("sglang.srt.managers.io_struct"), name)

    def _publish(self) -> None:
        """Let every module see the arguments, from 0.5.14 on with a function of its own."""
        try:
            context: Any = import_module("sglang.srt.runtime_context")
        except ModuleNotFoundError:
            return
        if hasattr(context, "publish"):
            ranks = {}
            if hasattr(context, "SpawnRanks"):
                ranks["ranks"] = context.SpawnRanks(world_rank=0, gpu_id=0)
            context.publish(self.arguments, role="scheduler", **ranks)

    def _watch(self) -> None:
        """Take the place of the receiving of requests, and keep hold of each."""
        scheduler = self.scheduler
        add = scheduler._add_request_to_queue

        def kept(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._running[request.rid] = request
            return add(request, *args, **kwargs)

        run_batch = scheduler.run_batch

        def noted(batch: Any, *args: Any, **kwargs: Any) -> Any:
            self.modes.add(batch.forward_mode.name)
            return run_batch(batch, *args, **kwargs)

        scheduler.run_batch = noted
        scheduler._add_request_to_queue = kept
        scheduler.recv_requests = self._receive
        if hasattr(scheduler, "request_receiver"):
            scheduler.request_receiver = _Receiver(scheduler.request_receiver, self._receive)

    def _receive(self, *args: Any, **kwargs: Any) -> list[Any]:
        turn, self._turn = self._turn, self._turn + 1
        if turn > TURNS:
            raise RuntimeError(f"requests were not finished after {TURNS} turns of the event loop")
        last = max(at for at, _ in self._plan)
        finished = all(request.finished() for request in self._running.values())
        # A few turns more, for what overlaps with the next one.
        self._idle = self._idle + 1 if turn > last and finished else 0
        if self._idle > 3:
            raise _Done
        return [item for at, item in self._plan if at == turn]

    def _flush(self) -> None:
        """Empty the cache, which the scheduler does where nothing is under way."""
        self.scheduler.last_batch = None
        if not hasattr(self.scheduler, "result_queue"):
            self.scheduler.result_queue = deque()
        if self.scheduler.flush_cache() is False:
            raise RuntimeError("the scheduler did not flush its cache")

    def _tokenized(self, name: str, request: Request) -> Any:
        kind = self._io("TokenizedGenerateReqInput")
        parameters: Any = import_module("sglang.srt.sampling.sampling_params").SamplingParams
        params = parameters(**request.params)
        params.normalize(self.scheduler.tokenizer)
        params.verify(self.scheduler.model_config.vocab_size)
        fields = inspect.signature(kind).parameters
        ids: Any = list(request.ids)
        if "array" in str(kind.__annotations__.get("input_ids", fields["input_ids"].annotation)):
            ids = array("q", ids)
        given = {
            "rid": name,
            "input_text": "",
            "input_ids": ids,
            "sampling_params": params,
            "return_logprob": request.logprobs,
            "logprob_start_len": request.start,
            "top_logprobs_num": request.top,
            "priority": request.priority,
            "stream": False,
        }
        required = [
            each for each, about in fields.items() if about.default is inspect.Parameter.empty
        ]
        values = {**dict.fromkeys(required), **given}
        return kind(**{each: value for each, value in values.items() if each in fields})


def _answer(request: Any, asked: Request) -> Answer:
    # From 0.5.14 on the logprobs of a request are an object of their own.
    held = getattr(request, "logprob", None) or request
    inputs = held.input_token_logprobs_val if asked.logprobs and asked.start >= 0 else None
    return Answer(
        tokens=tuple(request.output_ids),
        logprobs=tuple(held.output_token_logprobs_val or ()) if asked.logprobs else (),
        inputs=tuple(inputs or ()),
        cached=request.cached_tokens,
        retracted=getattr(request, "retraction_count", 0),
        top=tuple(_top(held)) if asked.top else (),
    )


def _top(held: Any) -> Iterator[tuple[float, int]]:
    """Give the most probable tokens at each position with their logprobs."""
    values, ids = held.output_top_logprobs_val, held.output_top_logprobs_idx
    for logprobs, tokens in zip(values, ids, strict=True):
        yield from zip(logprobs, tokens, strict=True)
