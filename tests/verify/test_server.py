"""What `verify --server` makes of the answers of a server, and of one that does not start."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.simulator import uncovered
from sgl_npu_patch.simulator.environment import environment
from sgl_npu_patch.verify import isolation
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.server import __main__ as process
from sgl_npu_patch.verify.server import run as servers
from sgl_npu_patch.verify.server.company import Company
from sgl_npu_patch.verify.server.drive import Answer, Request
from sgl_npu_patch.verify.server.scenarios import SCENARIOS, Scenario
from tests import server as servers_of_releases
from tests.engine.package import run
from tests.verify.checked import lay_out, patched


class Engine:
    """Stand in for a server: a token depends on the prompt, and on what a fault lets through."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.runs: list[int] = []
        self.cache: set[tuple[int, ...]] = set()
        self.modes = {"MIXED"}
        self.scheduler = SimpleNamespace(enable_overlap=False)

    def option(self, name: str) -> bool:
        return {"disable_radix_cache": False}[name]

    def takes_large_seeds(self) -> bool:
        return True

    def text(self, token: int) -> str:
        return str(token)

    def run(self, requests: Sequence[Request], *, flush: bool = True) -> list[Answer]:
        if flush:
            self.cache = set()
        self.runs.append(len(requests))
        answers = [
            self.answer(each, [*requests[:number], *requests[number + 1 :]])
            for number, each in enumerate(requests)
        ]
        self.cache |= {each.ids for each in requests}
        return answers

    def answer(self, request: Request, others: Sequence[Request]) -> Answer:
        hit = request.ids in self.cache
        wrong = {
            "": False,
            "copies": any(each.ids == request.ids for each in others),
            "greedy": any(each.params["temperature"] == 0.0 for each in others),
            "cache": hit,
        }[self.fault]
        new = int(request.params["max_new_tokens"])
        if request.abort >= 0:
            new = request.abort - request.at
        tokens = tuple(sum(request.ids) + number for number in range(new))
        for stop in request.params.get("stop", ()):
            tokens = tokens[: [*map(str, tokens)].index(stop) + 1]
        logprobs = [0.5 * token for token in tokens]
        if wrong:
            logprobs[1] += 1e-6
        shown = tuple(logprobs) if request.logprobs else ()
        crowded = len(others) > 10 or any(each.priority for each in others)
        return Answer(tokens, shown, (), 256 if hit else 0, int(crowded))


def company(fault: str = "") -> Company:
    engine: Any = Engine(fault)
    return Company(engine, 512)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_server_that_keeps_the_promise(name: str) -> None:
    event, ended = process.verdict(SCENARIOS[name], company())
    # This one has no cache that a longer prompt could find a shorter one in.
    expected = "not-applicable" if name == "server.second_turn" else "pass"
    assert (event["verdict"], ended) == (expected, False)
    if expected == "pass":
        assert " answers)" in event["message"]


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("copies", {"server.copies"}),
        ("greedy", {"server.at_once"}),
        ("cache", {"server.prefix_in_cache"}),
    ],
)
def test_a_server_that_breaks_it(fault: str, failing: set[str]) -> None:
    verdicts = {name: process.verdict(each, company(fault))[0] for name, each in SCENARIOS.items()}
    found = {name for name, event in verdicts.items() if event["verdict"] == "fail"}
    assert failing <= found
    assert "server.alone_again" not in found


def test_a_failure_shows_the_smallest_company() -> None:
    asked = company("greedy")
    subject = asked.subject("seeded", 5)
    others = [asked.subject(name, 3).request for name in ("top-k", "greedy", "top-p", "greedy")]
    with pytest.raises(Failed) as failure:
        asked.compare([subject], others)
    assert str(failure.value) == "seeded, 5 tokens, beside 1 others: logprob 1 differs (seed 0)"
    alone = asked.alone(subject).logprobs[1]
    assert failure.value.expected == f"logprob 1 to be {alone}, as alone (seed 0)"
    assert failure.value.found == f"{alone + 1e-6}"
    shown = failure.value.code.splitlines()
    assert [line.partition(":")[0] for line in shown] == ["subject", "beside"]
    assert "'temperature': 0.0" in shown[1]


def test_requests_are_the_same_in_every_run() -> None:
    assert company().subjects == company().subjects
    assert company().neighbour(3) == company().neighbour(3)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NotImplementedError("npu_x is not simulated"), "not-applicable"),
        (ModuleNotFoundError("No module named 'x'"), "not-applicable"),
        (AttributeError("'_OpNamespace' 'npu' object has no attribute 'npu_x'"), "not-applicable"),
        (AttributeError("torch.npu.x is not simulated"), "not-applicable"),
        (AttributeError("'Scheduler' object has no attribute 'x'"), "fail"),
        (RuntimeError("of the tree"), "fail"),
        (SystemExit(1), "fail"),
    ],
)
def test_what_a_server_raises(error: BaseException, verdict: str) -> None:
    def scenario(company: Company) -> None:
        raise error

    event, ended = process.verdict(Scenario("server.x", "It holds.", scenario), company())
    assert (event["verdict"], ended) == (verdict, True)
    assert str(error) in event["message"]


class Processes:
    """Stand in for `isolation.run`."""

    def __init__(self, *results: tuple[str, str, bool]) -> None:
        self.results = [
            Result(
                id=name,
                seam="",
                kind="server",
                verdict=verdict,  # type: ignore[arg-type]
                meaning="It holds.",
                message="a message",
                lost=lost,
            )
            for name, verdict, lost in results
        ]
        self.asked: list[tuple[list[str], Mapping[str, Any], dict[str, Any]]] = []

    def __call__(
        self, groups: Sequence[str], request: Mapping[str, Any], **options: Any
    ) -> list[Result]:
        self.asked.append((list(groups), request, options))
        return [each for each in self.results if groups == [servers.GROUP]]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(servers, "find_spec", lambda name: SimpleNamespace())
    return lay_out(patched(), tmp_path / "tree")


def test_a_failed_scenario_fails(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Processes((servers.STARTS, "pass", False), ("server.copies", "fail", False))
    monkeypatch.setattr(isolation, "run", stub)
    done = run("verify", tree, "--server", "--only", "server.copies")
    assert done.code == 1
    assert "FAIL server.copies\n  found    a message\n" in done.stdout.decode()
    ((groups, request, options),) = stub.asked
    assert (groups, request) == (["server"], {"only": ["server.copies"], "model": "qwen3"})
    assert options["program"] == "sgl_npu_patch.verify.server"
    assert options["variables"]["PYTHONPATH"].startswith(str(tree.resolve()))
    assert options["variables"]["ASCEND_USE_FIA"] == "1"
    json = run("verify", tree, "--server", "--only", "server.copies", "--format", "json").report
    assert [each["kind"] for each in json["checks"]] == ["server", "server"]


@pytest.mark.parametrize(("verdict", "lost"), [("fail", True), ("not-applicable", False)])
def test_a_server_that_does_not_start_fails_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, lost: bool
) -> None:
    stub = Processes((servers.STARTS, verdict, lost), ("server.copies", verdict, lost))
    monkeypatch.setattr(isolation, "run", stub)
    done = run("verify", tree, "--server", "--only", "server.copies")
    assert done.code == 0
    assert "n/a   server.copies" in done.stdout.decode()


def test_without_the_extra(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda name: None if name == "zmq" else object())
    done = run("verify", tree, "--server")
    assert (done.code, done.stdout) == (4, b"")
    assert done.stderr == (
        "sgl-npu-patch: zmq not installed, which the tree's server needs: "
        "install sgl-npu-patch[server]\n"
    )


def test_static_forbids_it(tree: Path) -> None:
    assert run("verify", tree, "--static", "--server").code == 2


def test_the_process_can_be_started_where_nothing_of_the_extra_is(tmp_path: Path) -> None:
    """On the simulated device it says what is missing, for every scenario."""
    if importlib.util.find_spec("transformers") is not None:
        (tmp_path / "transformers.py").write_text("raise ImportError('no transformers')\n")
    request = {"only": ["server.copies"], "model": "qwen3"}
    found = isolation.run(
        [servers.GROUP],
        request,
        program="sgl_npu_patch.verify.server",
        variables=environment([tmp_path]),
    )
    assert [(each.id, each.kind, each.verdict) for each in found] == [
        (servers.STARTS, "server", "not-applicable"),
        ("server.copies", "server", "not-applicable"),
    ]
    assert "transformers" in found[0].message
    assert replace(found[1], message="") != found[1]


@pytest.mark.parametrize(
    "option",
    [
        ["--model", "qwen2"],
        ["--server", "--model", "gpt2"],
        ["--adversarial", "attention"],
        ["--server", "--adversarial", "products"],
    ],
)
def test_options_of_the_server(tree: Path, option: list[str]) -> None:
    assert run("verify", tree, *option).code == 2


@pytest.mark.slow
def test_a_real_server() -> None:
    """A patched release keeps the promise where the extra is installed; without it, this fails."""
    found = servers_of_releases.find("0.5.12.post1", ["server.copies", "server.penalties"])
    assert {each["id"]: each["verdict"] for each in found["checks"]} == {
        "server.starts": "pass",
        "server.copies": "pass",
        "server.penalties": "pass",
    }


def _answers_of(kernel: str, fault: str = "") -> Company:
    """Return the company of a server with a kernel that is not covered, and maybe a fault too."""
    asked = company(fault)
    run = asked.engine.run

    def with_kernel(requests: Sequence[Request], *, flush: bool = True) -> list[Answer]:
        answers = run(requests, flush=flush)
        logits = torch.ones(1, dtype=torch.bfloat16)
        moved = uncovered.unreplaced(kernel, logits, len(requests))
        return [replace(each, inputs=(float(moved),)) for each in answers]

    asked.engine.run = with_kernel  # type: ignore[method-assign]
    return asked


def test_what_a_kernel_does_that_nothing_replaces_fails_no_tree() -> None:
    event, ended = process.verdict(SCENARIOS["server.copies"], _answers_of("npu_product"))
    assert (event["verdict"], ended) == ("not-applicable", False)
    assert event["message"].startswith(
        "not covered: npu_product, which nothing makes batch-invariant: greedy, 1 tokens, beside 1 "
    )
    # Alone it always gets the same, and there is nothing to excuse.
    event, _ = process.verdict(SCENARIOS["server.alone_again"], _answers_of("npu_product"))
    assert event["verdict"] == "pass"


def test_nor_does_it_excuse_what_else_is_wrong() -> None:
    event, _ = process.verdict(SCENARIOS["server.copies"], _answers_of("npu_product", "copies"))
    assert event["verdict"] == "fail"
    assert "logprob 1 differs" in event["message"]


def test_a_second_run_makes_the_same_requests() -> None:
    asked = company()
    asked.neighbour(0)
    again = asked.afresh()
    assert [asked.neighbour(turn) for turn in range(5)] == [again.neighbour(t) for t in range(5)]
    assert asked.subjects == again.subjects
