"""A scheduler that `verify --server` drives gets its requests at their turns."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sgl_npu_patch.verify.findings import NotApplicable
from sgl_npu_patch.verify.server import drive
from sgl_npu_patch.verify.server.drive import Engine, Request


@dataclass
class ServerArgs:
    model_path: str
    device: str = "cuda"
    chunked_prefill_size: int = -1
    enable_mixed_chunk: bool = False
    disable_radix_cache: bool = False

    def __post_init__(self) -> None:
        self.enable_mixed_chunk = False


class PortArgs:
    @staticmethod
    def init_new(arguments: ServerArgs) -> None:
        pass


@dataclass
class TokenizedGenerateReqInput:
    rid: str
    input_ids: list[int]
    sampling_params: Any
    return_logprob: bool
    mm_inputs: Any


@dataclass
class AbortReq:
    rid: str


class SamplingParams:
    def __init__(self, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens

    def normalize(self, tokenizer: object) -> None:
        pass

    def verify(self, size: int) -> None:
        assert size == 512


@dataclass
class Req:
    rid: str
    wanted: int
    output_ids: list[int] = field(default_factory=list)
    output_token_logprobs_val: list[float] = field(default_factory=list)
    cached_tokens: int = 0

    def finished(self) -> bool:
        return len(self.output_ids) >= self.wanted


class Scheduler:
    """Makes a token, which is the number of requests under way, for each of them at each turn."""

    enable_overlap = False
    tokenizer = None

    def __init__(self, server_args: ServerArgs, port_args: None, tp_rank: int) -> None:
        self.model_config = SimpleNamespace(vocab_size=512)
        self.flushed = 0
        self.running: list[Req] = []
        self.seen: list[list[str]] = []

    def flush_cache(self) -> bool:
        self.flushed += 1
        return True

    def _add_request_to_queue(self, request: Req) -> None:
        self.running.append(request)

    def run_batch(self, batch: Any) -> None:
        for each in batch.reqs:
            each.output_ids.append(len(batch.reqs))
            each.output_token_logprobs_val.append(-1.0)

    def event_loop_normal(self) -> None:
        while True:
            received = self.recv_requests()  # type: ignore[attr-defined]
            self.seen.append([type(each).__name__ for each in received])
            for each in received:
                if isinstance(each, AbortReq):
                    for request in self.running:
                        if request.rid.startswith(each.rid):
                            request.wanted = 0
                else:
                    request = Req(each.rid, each.sampling_params.max_new_tokens)
                    self._add_request_to_queue(request)
            self.running = [each for each in self.running if not each.finished()]
            if self.running:
                mode = SimpleNamespace(name="DECODE")
                self.run_batch(SimpleNamespace(reqs=self.running, forward_mode=mode))


@pytest.fixture(autouse=True)
def tree(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("", ".srt", ".srt.managers", ".srt.sampling")
    contents = {
        **{f"sglang{name}": () for name in names},
        "sglang.srt.server_args": (ServerArgs, PortArgs),
        "sglang.srt.managers.scheduler": (Scheduler,),
        "sglang.srt.managers.io_struct": (TokenizedGenerateReqInput, AbortReq),
        "sglang.srt.sampling.sampling_params": (SamplingParams,),
    }
    for name, definitions in contents.items():
        module = ModuleType(name)
        module.__path__ = []
        for each in definitions:
            setattr(module, each.__name__, each)
        monkeypatch.setitem(sys.modules, name, module)


def asked(new: int, at: int = 0, abort: int = -1) -> Request:
    return Request((5, 6), {"max_new_tokens": new}, at=at, abort=abort)


def test_requests_come_at_their_turns() -> None:
    engine = Engine("model", chunked_prefill_size=256)
    first, second = engine.run([asked(4), asked(2, at=2)])
    assert (first.tokens, second.tokens) == ((1, 1, 2, 2), (2, 2))
    assert first.logprobs == (-1.0,) * 4
    assert [len(each) for each in engine.scheduler.seen[:4]] == [1, 0, 1, 0]
    assert (engine.modes, engine.scheduler.flushed) == ({"DECODE"}, 1)
    assert engine.arguments.device == "npu"


def test_the_cache_is_kept_if_asked_for() -> None:
    engine = Engine("model")
    engine.run([asked(1)], flush=False)
    assert engine.scheduler.flushed == 0


def test_an_abort_is_of_one_request_alone() -> None:
    engine = Engine("model")
    answers = engine.run([asked(9, abort=3) if each == 1 else asked(6) for each in range(12)])
    assert [len(each.tokens) for each in answers] == [6, 3, *[6] * 10]
    assert "AbortReq" in engine.scheduler.seen[3]


def test_what_a_client_never_gets_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "TURNS", 20)
    with pytest.raises(RuntimeError, match="not finished after 20 turns"):
        Engine("model").run([asked(40)])


@pytest.mark.parametrize(
    ("option", "message"),
    [("enable_mixed_chunk", "from True to False"), ("enable_other", "has no option enable_other")],
)
def test_an_option_that_a_release_does_not_take(option: str, message: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.raises(NotApplicable, match=message):
        Engine("model", **options)


def test_a_size_may_be_set_back() -> None:
    assert not Engine("model", {"enable_mixed_chunk": True}).option("enable_mixed_chunk")
