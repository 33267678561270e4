"""Check how upstream's own draws are made independent of the neighbours, and where they are not."""

from __future__ import annotations

import difflib

import pytest

from sgl_npu_patch.codemods import HARDENING, SERIES
from sgl_npu_patch.engine.plan import make_plan
from tests.helpers import (
    BATCH_INFO,
    NATIVE_CLASS,
    NATIVE_DRAW,
    NATIVE_FILTERED,
    ROOT,
    SAMPLER,
    Files,
    MemoryTree,
    check_already,
    check_applied,
    check_conflict,
    check_edited,
    check_not_needed,
    check_upstream,
    flagged_sampler,
    judge,
    native_sampler,
    old_sampler,
    package,
)

SEAM = "hardened_sampler"
FILTERED = "top_k_top_p_min_p_sampling_from_logits_ascend"
GAPS = ("min_p_type_error", "neighbour_dependent_draw", "gumbel_upper_bound", "top_p_dtype")
COUNT = (
    "    # The flag still counts neighbours that have left the batch.\n"
    "    fusable_batch |= sampling_seed is not None and bool(fusable.all())\n"
)

MIN_P = ("floor = kept.max(dim=-1) * min_ps", "floor = kept.max(dim=-1).values * min_ps")
CLAMP = (
    "    if not torch.compiler.is_compiling() and is_npu():\n"
    "        # The largest hash would give infinite noise, and a filtered token would win.\n"
    "        u.clamp_(max=1.0 - 2.0**-32)\n"
)
TOP_P = (
    "        # The fused operator wants both in one type.\n"
    "        top_ps = top_ps.to(logits.dtype)\n"
)
GREEDY = """\
            if info.sampling_seed is not None:
                # A greedy request takes the first of tied logits, as it would alone.
                ids = torch.where(
                    info.top_ks == 1,
                    torch.argmax(logits, dim=-1),
                    ids,
                )
"""


def _replaced(source: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    return source


def _hardened(files: Files) -> str:
    return judge(SEAM, files)[2][SAMPLER].decode()


@pytest.mark.parametrize("files", [native_sampler(), flagged_sampler()], ids=["rows", "flag"])
def test_rewrites_the_product_that_raises_and_inserts_the_rest(files: Files) -> None:
    before = str(files[SAMPLER])
    after = check_edited(SEAM, files, SAMPLER, MIN_P[1], CLAMP, TOP_P, GREEDY)
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert [line[2:].strip() for line in lines if line.startswith("- ")] == [MIN_P[0]]
    assert after.count(f"sampled[rows] = {FILTERED}(") == 1
    assert after.count("weights = logits.double()") == 3
    assert after.count("kept = torch.zeros_like(probs).scatter(-1, order, ranked)") == 1


def test_the_draws_are_those_of_the_series_deterministic() -> None:
    """What is inserted before upstream's draws is what older trees get before theirs."""

    def inserted(seam: str, files: Files) -> set[str]:
        before = package(files)[SAMPLER].decode().splitlines()
        after = judge(seam, files)[2][SAMPLER].decode().splitlines()
        return {line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")}

    threaded = ("positions", "sampling_seed", "@torch.compile", "def ", "    ):")
    ours = {line for line in inserted("sampler", {}) if not any(t in line for t in threaded)}
    assert ours - {""} <= inserted(SEAM, native_sampler())


def test_a_flag_of_the_batch_is_counted_again_by_rows() -> None:
    after = check_edited(SEAM, flagged_sampler(), SAMPLER, COUNT)
    assert "    fusable = (top_ks <= 1024) & (top_ks >= 1)\n" in after
    assert after.index("return sampled") < after.index(COUNT) < after.index("if hasattr")


def test_the_limits_are_those_that_the_flag_is_made_from() -> None:
    files = flagged_sampler(flag="all(2 <= r.top_k <= 99 for r in batch.reqs)")
    check_edited(SEAM, files, SAMPLER, "fusable = (top_ks <= 99) & (top_ks >= 2)\n")


@pytest.mark.parametrize("files", [native_sampler(), flagged_sampler()], ids=["rows", "flag"])
def test_a_hardened_sampler_is_upstreams_without_gaps(files: Files) -> None:
    hardened = {**files, SAMPLER: _hardened(files)}
    check_already(SEAM, hardened)
    check_upstream("sampler", files, gaps=GAPS)
    check_upstream("sampler", hardened, gaps=())


def test_gaps_that_hardening_closes_are_not_named_in_the_same_run() -> None:
    tree = MemoryTree({ROOT / name: data for name, data in package(native_sampler()).items()})
    series = {name: SERIES[name] for name in (SEAM, "sampler")}
    plan = make_plan(tree, series)
    assert [(o.status, o.gaps) for o in plan.outcomes] == [("pending", ()), ("upstream", ())]


@pytest.mark.parametrize(
    ("part", "gap"),
    [
        pytest.param(CLAMP, "gumbel_upper_bound", id="the bound of the noise"),
        pytest.param(TOP_P, "top_p_dtype", id="the type of top-p"),
        pytest.param(GREEDY, "neighbour_dependent_draw", id="the token of a greedy row"),
        pytest.param(
            COUNT, "neighbour_dependent_draw", id="the count of the rows, as after 0.5.20"
        ),
    ],
)
def test_what_was_taken_out_again_is_a_gap_and_put_back(part: str, gap: str) -> None:
    files = flagged_sampler()
    hardened = _hardened(files)
    half = {**files, SAMPLER: _replaced(hardened, (part, ""))}
    check_upstream("sampler", half, gaps=(gap,))
    check_applied(SEAM, half, {SAMPLER: hardened})


def test_gaps_that_a_fork_has_closed_in_the_same_words_are_left() -> None:
    closed = native_sampler(
        filtered=_replaced(
            NATIVE_FILTERED, MIN_P, ("        fused = torch", TOP_P + "        fused = torch")
        )
    )
    check_upstream("sampler", closed, gaps=("neighbour_dependent_draw", "gumbel_upper_bound"))
    assert _hardened(closed) == _hardened(native_sampler())


def test_trees_without_upstreams_draws_are_left_to_the_other_series() -> None:
    said = "series deterministic contains these repairs"
    check_not_needed(SEAM, {}, match=said)
    check_not_needed(SEAM, {SAMPLER: judge("sampler")[2][SAMPLER]}, match=said)
    check_not_needed(SEAM, {SAMPLER: old_sampler(path=True)}, match=said)
    check_not_needed(SEAM, {SAMPLER: old_sampler(path=False)}, match=said)


def test_a_bound_of_upstreams_own_gets_no_second_one() -> None:
    bounded = "u.log_().clamp_(max=-(2.0**-32)).neg_()"
    draw = NATIVE_DRAW.replace("u.log_().neg_()", bounded, 1)
    after = _hardened(native_sampler(draw=draw))
    assert "is_compiling" not in after


ELSE = "            logs = kept.to(torch.float64)\n"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        pytest.param(
            ELSE, "            record(kept)\n" + ELSE, "draws by multinomial_with_seed",
            id="the seeded branch records something",
        ),
        pytest.param(
            ELSE, ELSE + "            if debug:\n                pass\n", "and no more",
            id="the seeded branch asks for more",
        ),
        pytest.param(
            "            ids = multinomial_with_seed(logs",
            "            other = multinomial_with_seed(logs",
            "and no more",
            id="the seeded branch gives its tokens another name",
        ),
        pytest.param(
            "            ids = torch.multinomial(kept,",
            "            kept = kept / 2\n            ids = torch.multinomial(kept,",
            "and no more",
            id="the unseeded branch does more",
        ),
        pytest.param(
            "            ids = multinomial_with_seed(logs, sampling_seed, positions)\n",
            "            ids = logs.view(-1)\n",
            "and no more",
            id="the seeded branch draws otherwise",
        ),
        pytest.param(
            "        if sampling_seed is None:\n            ids",
            "        if sampling_seed is None or greedy:\n            ids",
            "under a further condition",
            id="the branch is chosen by more",
        ),
        pytest.param(
            "        if sampling_seed is None:\n            ids",
            "        if sampling_seed is not None:\n            ids",
            "under a further condition",
            id="the branches are the other way round",
        ),
        pytest.param(
            "    if hasattr", "    top_ks = top_ks.clamp(max=9)\n    if hasattr",
            "in the function's first statement",
            id="a statement in front would run twice for a mixed batch",
        ),
        pytest.param(
            "torch.multinomial(ranked, num", "torch.multinomial(probs, num",
            "torch.multinomial(ranked, ...)",
            id="the sorted path draws from what it did not sort",
        ),
        pytest.param(
            "    return ids.view(-1)", "    record(ids)\n    return ids.view(-1)",
            "a return of nothing else",
            id="something is done with the tokens first",
        ),
    ],
)  # fmt: skip
def test_other_code_in_the_way_is_a_conflict(old: str, new: str, match: str) -> None:
    files = native_sampler(filtered=_replaced(NATIVE_FILTERED, (old, new)))
    check_conflict(SEAM, files, match=match, at=f"def {FILTERED}")


def test_probabilities_that_are_weighted_are_a_conflict() -> None:
    weighted = "            probs = torch.softmax(logits, dim=-1)\n"
    body = _replaced(NATIVE_CLASS, (weighted, weighted + "            probs.pow_(2)\n"))
    check_conflict(
        SEAM, native_sampler(body=body), match="the softmax of logits", at="def _sample_from_logits"
    )


FLAG_PARAMETER = "    fusable_batch: bool = False,\n"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        pytest.param(
            "= False", "= True", "logits, top_ks", id="a batch is fusable unless told otherwise"
        ),
        pytest.param(
            "fusable_batch:\n", "fusable_batch or debug:\n", "hasattr(...) and fusable_batch in",
            id="the choice asks for more",
        ),
        pytest.param(
            "and fusable_batch:\n", "and torch.all(top_ks <= 9):\n",
            "hasattr(...) and fusable_batch in",
            id="the choice does not ask the flag",
        ),
        pytest.param(
            FLAG_PARAMETER, FLAG_PARAMETER + "    other: bool = False,\n", "logits, top_ks",
            id="a further parameter",
        ),
    ],
)  # fmt: skip
def test_a_flag_that_is_not_clear_is_a_conflict(old: str, new: str, match: str) -> None:
    files = flagged_sampler()
    text = _replaced(str(files[SAMPLER]), (old, new))
    check_conflict(SEAM, {**files, SAMPLER: text}, match=match, at=f"def {FILTERED}")


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param("any(1 <= r.top_k <= 1024 for r in batch.reqs)", id="of any row"),
        pytest.param("all(1 < r.top_k <= 1024 for r in batch.reqs)", id="another comparison"),
        pytest.param("all(1 <= r.top_k <= LARGEST for r in batch.reqs)", id="a limit by name"),
        pytest.param("all(1 <= r.top_p <= 1024 for r in batch.reqs)", id="of another parameter"),
        pytest.param("all(r.top_k <= 1024 for r in batch.reqs)", id="one limit"),
        pytest.param("all(1 <= r.top_k <= 9 for r in batch.reqs if r)", id="of some rows"),
        pytest.param("batch.fusable", id="computed elsewhere"),
    ],
)
def test_a_flag_made_from_something_else_is_a_conflict(flag: str) -> None:
    check_conflict(
        SEAM,
        flagged_sampler(flag=flag),
        match="whose limits a row is to be tested for",
        at="def from_schedule_batch",
    )


def test_a_flag_that_nothing_makes_is_a_conflict() -> None:
    files = {**flagged_sampler(), BATCH_INFO: ""}
    check_conflict(SEAM, files, match="from_schedule_batch")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("fusable.any() and not", "fusable.any() or not", id="the test of the rows"),
        pytest.param(
            "scatter(-1, order, ranked)", "scatter(-1, order, probs)", id="the sorted draw"
        ),
        pytest.param(
            "torch.argmax(logits, dim=-1)", "torch.argmin(logits, dim=-1)", id="the greedy token"
        ),
    ],
)
def test_what_was_changed_in_ours_is_a_conflict_for_both_series(old: str, new: str) -> None:
    changed = {SAMPLER: _replaced(_hardened(native_sampler()), (old, new))}
    for seam in (SEAM, "sampler"):
        check_conflict(seam, changed, match="take that statement out")


def test_the_series_holds_it_before_what_it_leaves_to() -> None:
    assert SEAM in HARDENING
    order = list(SERIES)
    assert order.index(SEAM) < order.index("sampler")
