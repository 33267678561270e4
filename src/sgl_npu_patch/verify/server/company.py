"""Compare a request's answer in company, bit for bit, with its answer alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.server.drive import Answer, Engine, Request

SEED = 0
NEW = 6
"""Tokens that a request of a scenario generates, unless it says otherwise."""
PAGE = 128
"""Tokens in a page of the cache on Ascend."""

PARAMS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.7, "sampling_seed": 7},
    "unseeded": {"temperature": 1.0},
    "top-k": {"temperature": 1.0, "top_k": 5, "sampling_seed": 1},
    "top-p": {"temperature": 1.0, "top_p": 0.8, "sampling_seed": 2},
    "min-p": {"temperature": 1.0, "min_p": 0.1, "sampling_seed": 4},
    "all three": {
        "temperature": 1.2, "top_k": 300, "top_p": 0.95, "min_p": 0.05, "sampling_seed": 6
    },
    "logit bias": {"temperature": 0.8, "logit_bias": {"17": 4.0, "31": -3.0}, "sampling_seed": 10},
}  # fmt: skip
"""What requests ask of the sampler, beside penalties."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A request whose answer must not depend on its company."""

    name: str
    request: Request

    def __str__(self) -> str:
        return f"{self.name}, {len(self.request.ids)} tokens"

    def at(self, turn: int) -> Subject:
        """Return it as one that comes at that turn of the event loop."""
        return replace(self, request=replace(self.request, at=turn))

    def but(self, *, params: Mapping[str, Any] | None = None, **changes: Any) -> Subject:
        """Return it with further parameters, and other fields of its request."""
        asked = _Params({**self.request.params, **(params or {})})
        return replace(self, request=replace(self.request, params=asked, **changes))


class Company:
    """Runs requests alone and together on one engine, and remembers what they got alone."""

    def __init__(self, engine: Engine, vocabulary: int) -> None:
        self.engine = engine
        self.random = random.Random(SEED)  # noqa: S311  # the same requests in every run
        self._vocabulary = vocabulary
        self._alone: dict[Request, Answer] = {}
        self._subjects: list[Subject] = []
        self.compared = 0

    def afresh(self) -> Company:
        """Return one that will make the same requests as this one, and knows no answers yet."""
        other = Company(self.engine, self._vocabulary)
        other.random.setstate(self.random.getstate())
        other._subjects = self._subjects
        return other

    def prompt(self, length: int) -> tuple[int, ...]:
        """Return a prompt of tokens that are not special."""
        return tuple(self.random.randrange(3, self._vocabulary) for _ in range(length))

    def subject(
        self, name: str, length: int, *, new: int = NEW, start: int = -1, **params: Any
    ) -> Subject:
        """Return a request for a number of tokens, with the parameters of that name or those."""
        asked = {"max_new_tokens": new, "ignore_eos": True, **PARAMS.get(name, {}), **params}
        return Subject(name, Request(self.prompt(length), _Params(asked), start=start))

    @property
    def subjects(self) -> list[Subject]:
        """Return one request for each set of parameters, some around the end of a page."""
        if not self._subjects:
            lengths = (1, 5, 17, PAGE - 1, PAGE, PAGE + 1, 9, 31)
            pairs = zip(PARAMS, lengths, strict=True)
            self._subjects = [self.subject(name, length) for name, length in pairs]
        return self._subjects

    def named(self, name: str) -> Subject:
        """Return the one of `subjects` with the parameters of that name."""
        return next(each for each in self.subjects if each.name == name)

    def neighbour(self, turn: int, *, length: int | None = None, new: int | None = None) -> Request:
        """Return a request that is only company."""
        name = self.random.choice([*PARAMS])
        length = length or self.random.choice([1, 3, 20, 40, PAGE + 2])
        new = new or self.random.randrange(1, NEW + 4)
        subject = self.subject(name, length, new=new).at(turn)
        return replace(subject.request, logprobs=self.random.random() < 0.5)

    def alone(self, subject: Subject) -> Answer:
        """Return what a request gets alone, with nothing in the cache."""
        request = subject.at(0).request
        if request not in self._alone:
            (self._alone[request],) = self.engine.run([request])
        return self._alone[request]

    def compare(
        self,
        subjects: Sequence[Subject],
        neighbours: Sequence[Request] = (),
        *,
        flush: bool = True,
        first: bool = True,
    ) -> list[Answer]:
        """Compare the answers in company with those alone, and return all that came.

        Args:
            flush: begin with nothing in the cache.
            first: the subjects stand before the neighbours where they come at the same turn.

        Raises:
            Failed: one differs; it shows the smallest company in which that one still does.
        """
        expected = [self.alone(subject) for subject in subjects]
        asked = [subject.request for subject in subjects]
        requests = [*asked, *neighbours] if first else [*neighbours, *asked]
        answers = self.engine.run(requests, flush=flush)
        begin = 0 if first else len(neighbours)
        for number, (subject, alone) in enumerate(zip(subjects, expected, strict=True), begin):
            self.compared += 1
            if not _same(alone, answers[number]):
                others = [*requests[:number], *requests[number + 1 :]] if flush else None
                raise self._failure(subject, alone, answers[number], others)
        return answers

    def _failure(
        self, subject: Subject, alone: Answer, among: Answer, others: list[Request] | None
    ) -> Failed:
        """Say what differs first, in a company from which nobody can be left out."""
        company = "over what the cache holds"
        if others is not None:
            for number in reversed(range(len(others))):
                fewer = [*others[:number], *others[number + 1 :]]
                again = self.engine.run([subject.request, *fewer])[0]
                if not _same(alone, again):
                    others, among = fewer, again
            company = f"beside {len(others)} others" if others else "alone again"
        what, place, want, found = _difference(alone, among)
        code = [f"subject: {_shown(subject.request)}"]
        code += [f"beside: {_shown(each)}" for each in others or ()]
        return Failed(
            f"{subject}, {company}: {what} {place} differs (seed {SEED})",
            expected=f"{what} {place} to be {want}, as alone (seed {SEED})",
            found=str(found),
            code="\n".join(code),
        )


class _Params(dict[str, Any]):
    """Parameters that a request can be remembered by."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


_COMPARED = {
    "inputs": "logprob of the prompt",
    "logprobs": "logprob",
    "tokens": "token",
    "top": "top logprob",
}
"""What of an answer must not depend on its company, and what one of it is called."""


def _same(one: Answer, other: Answer) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _COMPARED)


def _difference(one: Answer, other: Answer) -> tuple[str, int, Any, Any]:
    """Return what differs first, its number, and both values."""
    for name, called in _COMPARED.items():
        values: tuple[Any, ...] = getattr(one, name)
        others: tuple[Any, ...] = getattr(other, name)
        for number, (value, found) in enumerate(zip(values, others, strict=False)):
            if value != found:
                return called, number, value, found
        if len(values) != len(others):
            return f"the number of {name}", len(values), len(values), len(others)
    raise ValueError("nothing differs")


def _shown(request: Request) -> str:
    ids = f"{len(request.ids)} tokens from {list(request.ids[:4])}"
    return f"{ids}, {dict(request.params)}, at turn {request.at}"
