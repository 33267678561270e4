"""Run the checks of the sampler on every shape of it, and on samplers that were spoilt."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from pathlib import Path

import pytest

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.simulator.modules import package_folder
from sgl_npu_patch.verify import isolation, off_npu
from sgl_npu_patch.verify.behaviour.sampler.distribution import p_value
from sgl_npu_patch.verify.static.judged import judge
from tests.helpers import ROOT, SAMPLER, MemoryTree
from tests.upstream import edited
from tests.upstream.edited import result, sources
from tests.upstream.releases import RELEASES_NATIVE, release_tree
from tests.upstream.test_statuses import expected_gaps
from tests.upstream.trees import patched_tree, sampled

PATCHED = (
    "0.5.9",
    "0.5.12.post1",
    "lsglang==1.3.1",
    "0.5.13",
    "0.5.15",
    "0.5.18",
    "0.5.21",
    "0.5.23",
)
OFTEN = ("0.5.12.post1", "0.5.23")
# Not executed at length: their code must be that of a release in PATCHED.
ALIKE = (
    "0.5.10rc0",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "sglang-kt==0.5.2",
    "sglang-kt==0.6.1",
    "sglang-kt==0.6.3",
    "sglang-kt==0.7.2",
)
NATIVE = ("0.5.13", "0.5.18", "0.5.21", "0.5.23")
LEFT_ALONE = {"0.5.3rc2": "not-needed", "0.5.8.post1": "withheld"}

FAILS_BY_GAP = {
    "neighbour_dependent_draw": {
        "sampler.neighbours_change_nothing",
        "sampler.a_neighbour_that_left_changes_nothing",
        "sampler.ties_are_cut_the_same",
        "sampler.greedy_takes_the_first_of_ties",
        "sampler.no_top_p_keeps_the_tail",
    },
    "min_p_type_error": {"sampler.min_p_works_on_the_fused_path"},
    "gumbel_upper_bound": {"sampler.largest_hash_is_an_ordinary_draw"},
    "top_p_dtype": {"sampler.top_p_has_the_type_of_logits"},
    "pytorch_draw_depends_on_neighbours": {
        "seeded_sampling.neighbours_change_nothing",
        "seeded_sampling.a_neighbour_that_left_changes_nothing",
        "seeded_sampling.ties_are_cut_the_same",
        "seeded_sampling.greedy_takes_the_first_of_ties",
        "seeded_sampling.no_top_p_keeps_the_tail",
        "seeded_sampling.batch_order_changes_nothing",
        "seeded_sampling.logprobs_change_nothing",
        "seeded_sampling.global_generator_is_not_used",
        "seeded_sampling.same_batch_twice",
        "seeded_sampling.rows_use_their_own_seed_and_position",
        "seeded_sampling.hashes_are_upstreams",
        "seeded_sampling.seed_and_position_matter",
        "seeded_sampling.draws_follow_the_distribution",
        "seeded_sampling.largest_hash_is_an_ordinary_draw",
    },
}


def results(
    package: Path, base: Path | None = None, *, left_out: str = "", only: tuple[str, ...] = ()
) -> dict[str, Result]:
    """Run the group as `verify` does and return its results by id."""
    request = {
        "package": str(package),
        "base": base and str(base),
        "left_out": {"sampler": left_out} if left_out else {},
        "native": False,
        "torch_npu": "2.10.0",
        "only": only,
    }
    return {each.id: each for each in isolation.run(["sampler"], request)}


def failed(found: dict[str, Result]) -> set[str]:
    return {name for name, each in found.items() if each.verdict == "fail"}


@pytest.mark.parametrize("version", sampled(PATCHED, OFTEN))
def test_a_patched_sampler_passes_everything(version: str) -> None:
    package = package_folder(patched_tree(version))
    found = results(package, package_folder(release_tree(version)))
    assert {each.verdict for each in found.values()} == {"pass"}, found


def test_without_the_original_nothing_is_compared_with_it() -> None:
    names = (
        "sampler.unseeded_draws_are_the_originals",
        "seeded_sampling.other_backends_keep_their_tokens",
    )
    found = results(package_folder(patched_tree("0.5.9")), only=names)
    assert {each.verdict for each in found.values()} == {"not-applicable"}
    assert all("--base" in each.message for each in found.values())


@pytest.mark.parametrize("version", sampled(NATIVE, OFTEN))
def test_a_native_sampler_fails_by_its_gaps(version: str) -> None:
    found = results(package_folder(release_tree(version)))
    gaps = expected_gaps(version) & {*FAILS_BY_GAP}
    assert failed(found) == set().union(*(FAILS_BY_GAP[gap] for gap in gaps))
    assert {found[name].gap for name in failed(found)} == gaps


@pytest.mark.parametrize("version", sampled(RELEASES_NATIVE, ("0.5.23",)))
def test_the_repair_rewrites_one_line_and_differs_nowhere_off_an_npu(version: str) -> None:
    files = sources(version)
    patched = result(files, edited.judge(files))
    before, after = (each[SAMPLER].decode().splitlines() for each in (files, patched))
    taken = [line[2:].strip() for line in difflib.ndiff(before, after) if line.startswith("- ")]
    assert taken == ["min_p_thresholds = probs_top_k_top_p.max(dim=-1) * min_ps"]
    judged, base = (
        judge(MemoryTree({ROOT / name: data for name, data in each.items()}))
        for each in (patched, files)
    )
    compared = off_npu.check(judged, base)
    verdicts = {each.id: each.verdict for each in compared}
    assert verdicts["sampler.unchanged_off_npu"] == "pass"
    assert "fail" not in verdicts.values()


@pytest.mark.parametrize("version", sampled((*LEFT_ALONE,), ("0.5.8.post1",)))
def test_an_ascend_path_that_is_left_alone_is_not_judged(version: str) -> None:
    package = package_folder(patched_tree(version))
    found = results(package, package_folder(release_tree(version)), left_out=LEFT_ALONE[version])
    verdicts = {(name.partition(".")[0], each.verdict) for name, each in found.items()}
    assert verdicts == {("sampler", "not-applicable"), ("seeded_sampling", "pass")}


def test_the_likelihood_of_a_distribution() -> None:
    exact = [300, 10, 140, 5, 90, 200, 30, 20, 7, 120, 60, 18]
    tokens = [token for token, count in enumerate(exact) for _ in range(count)]
    assert p_value(tokens, 12) > 0.99
    assert p_value(tokens, 11) == 0.0
    assert p_value([*tokens, *[3] * 40], 12) < 1e-6
    # As scipy.stats.chisquare gives it.
    assert p_value([*tokens, *[3] * 10], 12) == pytest.approx(0.0488876319304016)


ASCEND_PATH = (
    "forward",
    "_forward_ascend_backend",
    "_sample_from_logits",
    "top_k_top_p_min_p_sampling_from_logits_ascend",
    "multinomial_with_seed",
)


@pytest.mark.parametrize("version", sampled(ALIKE, ("0.5.12",)))
def test_the_releases_between_run_the_same_code(version: str) -> None:
    assert ascend_path(version) in [ascend_path(executed) for executed in PATCHED]


@cache
def ascend_path(version: str) -> dict[str, str]:
    """Return the code of the functions that draw on the Ascend backend, comments left out."""
    file = patched_tree(version) / "sglang" / SAMPLER
    return {
        node.name: ast.unparse(node)
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.FunctionDef) and node.name in ASCEND_PATH
    }
