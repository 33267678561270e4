"""Judge a seeded sample of refactorings; the command judges all of them."""

from __future__ import annotations

import pytest

from tests.refactor.__main__ import PAGE, cases
from tests.refactor.kinds import KINDS
from tests.refactor.oracle import judge
from tests.refactor.project import HANDLER, SAMPLER_FUNCTIONS, SHAPES, places, share
from tests.refactor.verified import verified
from tests.upstream.trees import sampled

REPAIRED = "0.5.23"
SAMPLED = ("0.5.3.post2", "0.5.12.post1")


@pytest.mark.parametrize("version", sampled(SAMPLED, SAMPLED[:1]))
def test_no_refactoring_is_patched_wrongly(version: str) -> None:
    assert version in SHAPES
    share(version)
    verdicts = {
        (kind, case.touched): judge(case)
        for kind in KINDS
        for case in cases(kind, version, 1, seed=7)
    }
    assert len({kind for kind, _ in verdicts}) >= len(KINDS) - 2
    wrong = {key: verdict for key, verdict in verdicts.items() if verdict.startswith("wrong")}
    assert not wrong
    right = sum(verdict == "right" for verdict in verdicts.values())
    assert right >= 0.6 * len(verdicts), verdicts


@pytest.mark.slow
def test_refactorings_are_verified_without_false_failures() -> None:
    """One of each kind by the static checks, and the move that was reported wrongly in full."""
    share(REPAIRED)
    found = {}
    for kind in KINDS:
        for case in cases(kind, REPAIRED, 1, seed=7):
            if judge(case) == "right":
                found[kind, case.touched] = verified(case, static_only=True)
    assert len(found) >= len(KINDS) - 4
    assert {key: verdict for key, verdict in found.items() if verdict != "passed"} == {}


@pytest.mark.slow
@pytest.mark.parametrize("definition", [HANDLER, SAMPLER_FUNCTIONS[1]])
def test_a_function_that_moved_unchanged_behaves_as_before(definition: str) -> None:
    share(REPAIRED)
    name = places(REPAIRED)[definition].block.name
    case = next(
        each for each in cases("moved_to_module", REPAIRED, 60, seed=3) if each.touched == name
    )
    assert judge(case) == "right"
    assert verified(case) == "passed"


def test_every_kind_is_in_the_table_and_few_are_refused() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| refactoring")
    ]
    assert [row[0] for row in rows] == [
        (kind.__doc__ or "").partition("\n")[0] for kind in KINDS.values()
    ]
    for what, total, right, refused, _, wrong, *verified_too in rows:
        assert int(total) >= 50, what
        assert int(right) + int(refused) == int(total), what
        assert int(refused) <= 0.4 * int(total), what
        assert int(wrong) == 0, what
        # A page that was written without verifying has no such columns.
        if verified_too:
            passed, not_applicable, false = map(int, verified_too)
            assert passed + not_applicable >= 1, what
            assert false == 0, what
