"""Judge trees that carry the change partly, or in words of their own."""

from __future__ import annotations

import pytest

from sgl_npu_patch.engine.plan import Plan
from sgl_npu_patch.reports.conflicts import evidence_lines
from tests.upstream.behaviour import check_behaviour
from tests.upstream.edited import (
    COMMON,
    OPS,
    SAMPLER,
    SERVER_ARGS,
    Files,
    judge,
    result,
    sources,
    statuses,
    take,
)
from tests.upstream.fixtures import ENABLE, FILTERED, FIXTURES, HANDLER, NEW, Fixture
from tests.upstream.trees import sampled


@pytest.fixture(scope="module", params=FIXTURES)
def tree(request: pytest.FixtureRequest) -> tuple[Fixture, Files, Plan]:
    """Return each fixture with its files and the plan for them."""
    chosen = FIXTURES[request.param]
    files = chosen.files
    return chosen, files, judge(files)


def test_the_status_is_as_expected(tree: tuple[Fixture, Files, Plan]) -> None:
    chosen, _, plan = tree
    assert statuses(plan) == chosen.statuses


def test_a_refusal_says_what_stands_in_the_way(tree: tuple[Fixture, Files, Plan]) -> None:
    chosen, _, plan = tree
    for outcome in plan.conflicts:
        assert outcome.evidence is not None
        assert outcome.evidence.where
        printed = " ".join(" ".join(evidence_lines(outcome.evidence)).split())
        assert chosen.refused[outcome.seam] in printed
    assert bool(plan.changes.changes) is (
        not plan.conflicts and "pending" in {*statuses(plan).values()}
    )


def test_it_is_not_patched_twice(tree: tuple[Fixture, Files, Plan]) -> None:
    _, files, plan = tree
    again = judge(result(files, plan))
    assert not again.changes.changes
    assert [o.seam for o in again.conflicts] == [o.seam for o in plan.conflicts]


ACCEPTED = tuple(name for name, each in FIXTURES.items() if not each.refused)
EXECUTED = (
    "the_mode_of_upstream_alone-0.5.12.post1",
    "positions_are_threaded_halfway_but_seeds_are_not-0.5.9",
    "our_guards_carried_on_to_a_native_release-0.5.13",
    "a_branch_for_the_npu_in_literals_that_imports_upstreams_module-0.5.4.post1",
)
"""One of each file that a recipe edits."""


@pytest.mark.parametrize("name", sampled(ACCEPTED, EXECUTED))
def test_what_is_accepted_behaves(name: str) -> None:
    chosen = FIXTURES[name]
    files, published = chosen.files, sources(chosen.version)
    edited = {path for path, data in files.items() if data != published.get(path)}
    check_behaviour(chosen.version, files, chosen.statuses, edited)


PIECES = {
    SERVER_ARGS: (HANDLER,),
    COMMON: ("get_dispatch_device_backend",),
    OPS: (ENABLE, "disable_batch_invariant_mode", "set_batch_invariant_mode"),
    SAMPLER: (
        "forward",
        "_forward_ascend_backend",
        "_sample_from_logits",
        FILTERED,
        "multinomial_with_seed",
    ),
}
TAKEN_BACK = [(path, name) for path, names in PIECES.items() for name in names]


@pytest.mark.parametrize(("path", "name"), TAKEN_BACK, ids=lambda value: value.rpartition("/")[2])
def test_a_piece_of_ours_that_was_taken_back_is_put_back(path: str, name: str) -> None:
    """Completing gives byte for byte what patching gives."""
    pristine = sources(NEW)
    patched = result(pristine, judge(pristine))
    files = dict(patched)
    take(files, pristine, path, name)
    plan = judge(files)
    assert not plan.conflicts
    assert result(files, plan) == patched
