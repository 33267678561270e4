"""The scenarios: what a request's answer must not depend on.

Each is a function of a `Company` whose docstring says what holds on a tree that passes. It raises
`Failed` where it does not, and `NotApplicable` where it has no meaning on a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.findings import NotApplicable
from sgl_npu_patch.verify.server.company import NEW, PAGE, Company

CHUNK = 2 * PAGE
"""Tokens of prompts that a turn takes at most."""
POOL = 16 * PAGE
"""Tokens that the cache holds."""

Run = Callable[[Company], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named scenario.

    Attributes:
        options: what the server is launched with beside the others, by name.
    """

    id: str
    meaning: str
    run: Run
    options: tuple[tuple[str, Any], ...] = ()


SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Run, **options: Any) -> Run:
    """Declare a scenario."""
    name = f"server.{run.__name__}"
    meaning = (run.__doc__ or "").strip().splitlines()[0]
    SCENARIOS[name] = Scenario(name, meaning, run, tuple(options.items()))
    return run


def launched_with(**options: Any) -> Callable[[Run], Run]:
    """Declare a scenario on a server that is launched with further options."""
    return partial(scenario, **options)


@scenario
def alone_again(company: Company) -> None:
    """A request alone gets the same answer again."""
    for subject in company.subjects[::2]:
        company.compare([subject])


@scenario
def copies(company: Company) -> None:
    """Copies of a request get its answer, however many there are."""
    for name, count in (("greedy", 2), ("seeded", 9), ("unseeded", 3)):
        company.compare([company.named(name)] * count)


@scenario
def at_once(company: Company) -> None:
    """Requests with other parameters and lengths, in one batch, change no answer."""
    subjects = company.subjects
    company.compare(subjects)
    company.compare(subjects[::-1])


@scenario
def large_seed(company: Company) -> None:
    """A seed that needs more than 31 bits gives the same answer beside others."""
    if not company.engine.takes_large_seeds():
        raise NotApplicable("the release keeps seeds in 32 bits, and ends at a larger one")
    subject = company.subject("seeded", 5, sampling_seed=2**31 + 5)
    company.compare([subject], [company.neighbour(turn, length=5) for turn in (0, 2)])


@scenario
def join_and_leave(company: Company) -> None:
    """Neighbours that join and leave at any turn change no answer."""
    subjects = company.subjects
    chosen = company.random.sample(subjects, 5)
    joining = [each.at(company.random.randrange(6)) for each in chosen]
    others = [company.neighbour(company.random.randrange(NEW + 6)) for _ in range(7)]
    company.compare(joining, others)
    # One after the other, so that each batch that is merged or filtered is of another kind.
    names = ("greedy", "seeded", "top-k", "min-p", "logit bias")
    one_a_turn = [company.named(name).at(turn) for turn, name in enumerate(names)]
    company.compare(one_a_turn, [company.neighbour(1, length=3, new=NEW)], first=False)


@scenario
def prompt_logprobs(company: Company) -> None:
    """The logprobs of a prompt do not depend on neighbours."""
    subject = company.subject("seeded", 40, start=0)
    company.compare([subject], [company.neighbour(turn) for turn in (0, 0, 1, 2)])
    company.compare([subject.at(2)], [company.neighbour(0) for _ in range(3)])


@scenario
def penalties(company: Company) -> None:
    """A request with penalties gets the same answer whoever joins, and its minimum of tokens."""
    asked = (
        {"temperature": 0.0, "frequency_penalty": 2.0},
        {"temperature": 0.0, "presence_penalty": 2.0},
        {"temperature": 0.0, "repetition_penalty": 2.0},
        {"temperature": 1.0, "frequency_penalty": 1.0, "sampling_seed": 3},
        {"temperature": 0.8, "min_new_tokens": 4, "stop_token_ids": [*range(5, 40)]},
    )
    subjects = [company.subject("penalties", 10, **params) for params in asked]
    short = [company.neighbour(turn, length=3, new=1) for turn in (1, 4)]
    company.compare(subjects[:1], short[:1])
    company.compare(subjects, short)


@scenario
def chunks(company: Company) -> None:
    """A long prompt gets the same answer wherever it is cut into chunks, if it is cut at all."""
    long = company.subject("seeded", 2 * CHUNK + 60)
    lengths = ((100, 0), (250, 0), (130, 1))
    company.compare([long], [company.neighbour(turn, length=n, new=4) for n, turn in lengths])
    before = [company.neighbour(0, length=n, new=6) for n in (90, 170)]
    company.compare([long], before, first=False)
    short = company.subject("top-k", 40, new=10)
    later = ((CHUNK + 60, 2), (CHUNK + 9, 4))
    company.compare([short], [company.neighbour(turn, length=n, new=3) for n, turn in later])


@scenario
def prefix_in_cache(company: Company) -> None:
    """A prompt gets the same answer whatever of it is in the cache."""
    _require_cache(company)
    subjects = [company.subject(name, 300) for name in ("seeded", "top-p")]
    company.compare(subjects)
    (*_, last) = company.compare(subjects, flush=False)
    _require_hit(last.cached, PAGE)
    others = []
    for subject, shared in zip(subjects, (PAGE + 1, 200), strict=True):
        ids = (*subject.request.ids[:shared], *company.prompt(70))
        others.append(replace(company.neighbour(0, new=3), ids=ids))
    company.compare([each.at(8) for each in subjects], others)


@scenario
def second_turn(company: Company) -> None:
    """A conversation's second turn gets the same answer over pages that the first one decoded."""
    _require_cache(company)
    first = company.subject("seeded", PAGE - 8, new=12)
    said = company.alone(first).tokens
    second = company.subject("seeded", 5)
    ids = (*first.request.ids, *said, *second.request.ids)
    second = replace(second, request=replace(second.request, ids=ids))
    company.alone(second)
    company.engine.run([first.request])
    (found,) = company.compare([second], flush=False)
    _require_hit(found.cached, PAGE)


@scenario
def retraction(company: Company) -> None:
    """A request that is taken out of a full cache and comes back gets the same answer."""
    # Each needs a second page after a few tokens, and there is not one for every request.
    length, new = PAGE - 4, 10
    subject = company.subject("seeded", length, new=new, frequency_penalty=0.5)
    crowd = [company.neighbour(0, length=length, new=new) for _ in range(POOL // PAGE * 3 // 4)]
    answers = company.compare([subject.at(1)], crowd, first=False)
    if not any(each.retracted for each in answers):
        raise NotApplicable("no request was taken out of the batch")


@scenario
def stop_and_logprobs(company: Company) -> None:
    """A stop string, and what logprobs are asked for, change no answer, nor does who joins."""
    plain = company.subject("seeded", 12)
    tokens = company.alone(plain).tokens
    stop = company.engine.text(tokens[NEW // 2])
    stopped = plain.but(params={"stop": [stop]})
    if len(company.alone(stopped).tokens) >= NEW:
        raise Failed("a stop string stops nothing", expected="fewer tokens", found=f"{NEW} tokens")
    quiet = plain.but(logprobs=False)
    if company.alone(quiet).tokens != tokens:
        found = str(company.alone(quiet).tokens)
        raise Failed("the tokens differ without logprobs", expected=str(tokens), found=found)
    top = plain.but(top=3)
    others = [company.neighbour(turn, length=5, new=3) for turn in (0, 2)]
    company.compare([stopped, quiet, top], others)


@scenario
def aborted_neighbour(company: Company) -> None:
    """A neighbour whose client gives it up changes no answer."""
    leaving = [replace(company.neighbour(0, new=40), abort=turn) for turn in (3, 4)]
    subjects = [company.named("logit bias"), company.named("min-p").at(2)]
    answers = company.compare(subjects, leaving)
    if all(len(each.tokens) == 40 for each in answers[2:]):
        raise NotApplicable("no request was given up")


@scenario
def nan_neighbour(company: Company) -> None:
    """A neighbour whose logits are not numbers changes no answer."""
    bias = {"17": math.nan}
    broken = company.subject("seeded", 20, new=4, logit_bias=bias).request
    subjects = [company.named("all three"), company.named("unseeded").at(2)]
    company.compare(subjects, [broken, replace(broken, at=3)])


@launched_with(disable_overlap_schedule=True)
def overlap_off(company: Company) -> None:
    """Without the overlap of batches, neighbours change no answer either."""
    if company.engine.scheduler.enable_overlap:
        raise NotApplicable("the server overlaps batches all the same")
    subjects = [company.named("seeded"), company.named("top-p").at(2)]
    subjects.append(company.subject("seeded", 9, frequency_penalty=1.0))
    company.compare(subjects, [company.neighbour(turn, length=5) for turn in (0, 2, 5)])


@launched_with(enable_mixed_chunk=True)
def mixed_chunk(company: Company) -> None:
    """Where prompts are cut and run beside tokens of other requests, no answer changes."""
    _require_cache(company)
    # A batch in which logprobs are asked for is never mixed.
    short = company.subject("top-k", 40).but(logprobs=False)
    long = company.subject("seeded", CHUNK + 60, new=4).but(logprobs=False)
    cut = replace(company.neighbour(4, length=CHUNK + 9, new=3), logprobs=False)
    company.compare([short, long.at(2)], [cut])
    if "MIXED" not in company.engine.modes:
        raise NotApplicable("no batch was mixed")


@launched_with(enable_priority_scheduling=True, max_running_requests=1)
def priorities(company: Company) -> None:
    """A request that others are preferred to gets the same answer."""
    # A request makes room where there are as many as may run, not where the cache is full.
    subject = company.subject("seeded", PAGE - 4, new=20).but(priority=0)
    preferred = replace(company.neighbour(4, length=20, new=2), priority=50)
    (answer, _) = company.compare([subject], [preferred])
    if not answer.retracted:
        raise NotApplicable("no request was preferred to one under way")


def _require_cache(company: Company) -> None:
    if company.engine.option("disable_radix_cache"):
        raise NotApplicable("the server keeps no prefixes, which this release cannot go on from")


def _require_hit(cached: int, least: int) -> None:
    if cached < least:
        raise NotApplicable(f"only {cached} tokens of the prompt were found in the cache")
