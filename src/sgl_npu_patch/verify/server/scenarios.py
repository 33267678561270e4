"""The scenarios: what a request's answer must not depend on.

Each is a function of a `Company` whose docstring says what holds on a tree that passes. It raises
`Failed` where it does not, and `NotApplicable` where it has no meaning on a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sgl_npu_patch.verify.findings import NotApplicable
from sgl_npu_patch.verify.server.company import NEW, PAGE, Company

CHUNK = 2 * PAGE
"""Tokens of prompts that a turn takes at most."""
POOL = 16 * PAGE
"""Tokens that the cache holds."""

Run = Callable[[Company], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named scenario."""

    id: str
    meaning: str
    run: Run


SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Run) -> Run:
    """Declare a scenario."""
    name = f"server.{run.__name__}"
    meaning = (run.__doc__ or "").strip().splitlines()[0]
    SCENARIOS[name] = Scenario(name, meaning, run)
    return run


@scenario
def alone_again(company: Company) -> None:
    """A request alone gets the same answer again."""
    for subject in company.subjects:
        company.compare([subject])


@scenario
def copies(company: Company) -> None:
    """Copies of a request get its answer, however many there are."""
    for name, count in (("greedy", 2), ("seeded", 9), ("unseeded", 3), ("all three", 3)):
        company.compare([company.subject(name, 20)] * count)


@scenario
def at_once(company: Company) -> None:
    """Requests with other parameters and lengths, in one batch, change no answer."""
    subjects = company.subjects
    company.compare(subjects)
    company.compare(subjects[::-1])


@scenario
def join_and_leave(company: Company) -> None:
    """Neighbours that join and leave at any turn change no answer."""
    subjects = company.subjects
    for _ in range(2):
        chosen = company.random.sample(subjects, 4)
        joining = [each.at(company.random.randrange(6)) for each in chosen]
        count = company.random.randrange(4, 9)
        others = [company.neighbour(company.random.randrange(NEW + 6)) for _ in range(count)]
        company.compare(joining, others)


@scenario
def prompt_logprobs(company: Company) -> None:
    """The logprobs of a prompt do not depend on neighbours."""
    subject = company.subject("seeded", 40, start=0)
    company.compare([subject], [company.neighbour(turn) for turn in (0, 0, 1, 2)])
    company.compare([subject.at(2)], [company.neighbour(0) for _ in range(3)])


@scenario
def penalties(company: Company) -> None:
    """A request with penalties gets the same answer whoever joins, and its minimum of tokens."""
    for params in (
        {"temperature": 0.0, "frequency_penalty": 2.0},
        {"temperature": 0.0, "presence_penalty": 2.0},
        {"temperature": 0.0, "repetition_penalty": 2.0},
        {"temperature": 1.0, "frequency_penalty": 1.0, "sampling_seed": 3},
        {"temperature": 0.8, "min_new_tokens": 6, "stop_token_ids": [*range(5, 40)]},
    ):
        subject = company.subject("penalties", 10, new=8, **params)
        for turn in (1, 4):
            company.compare([subject], [company.neighbour(turn, length=3, new=1)])


@scenario
def chunks(company: Company) -> None:
    """A long prompt gets the same answer wherever it is cut into chunks."""
    _require_cache(company)
    long = company.subject("seeded", 2 * CHUNK + 60)
    lengths = ((100, 0), (250, 0), (130, 1))
    company.compare([long], [company.neighbour(turn, length=n, new=4) for n, turn in lengths])
    before = [company.neighbour(0, length=n, new=6) for n in (90, 170)]
    company.compare([long], before, first=False)
    short = company.subject("top-k", 40, new=16)
    later = ((CHUNK + 60, 2), (CHUNK + 9, 4))
    company.compare([short], [company.neighbour(turn, length=n, new=3) for n, turn in later])


@scenario
def prefix_in_cache(company: Company) -> None:
    """A prompt gets the same answer whatever of it is in the cache."""
    _require_cache(company)
    subjects = [company.subject(name, 300) for name in ("greedy", "seeded", "top-p")]
    company.compare(subjects)
    (*_, last) = company.compare(subjects, flush=False)
    _require_hit(last.cached, PAGE)
    others = []
    for subject, shared in zip(subjects, (PAGE, PAGE + 1, 200), strict=True):
        ids = (*subject.request.ids[:shared], *company.prompt(70))
        others.append(replace(company.neighbour(0, new=3), ids=ids))
    company.compare([each.at(8) for each in subjects], others)


@scenario
def second_turn(company: Company) -> None:
    """A conversation's second turn gets the same answer over pages that the first one decoded."""
    _require_cache(company)
    first = company.subject("seeded", PAGE - 20, new=30)
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
    length, new = PAGE - 6, 16
    subject = company.subject("seeded", length, new=new)
    crowd = [company.neighbour(0, length=length, new=new) for _ in range(POOL // PAGE * 3 // 4)]
    answers = company.compare([subject.at(1)], crowd, first=False)
    if not any(each.retracted for each in answers):
        raise NotApplicable("no request was taken out of the batch")


def _require_cache(company: Company) -> None:
    if company.engine.arguments.disable_radix_cache:
        raise NotApplicable(
            "the tree keeps no prefixes, and answers from the last chunk of a prompt"
        )


def _require_hit(cached: int, least: int) -> None:
    if cached < least:
        raise NotApplicable(f"only {cached} tokens of the prompt were found in the cache")
