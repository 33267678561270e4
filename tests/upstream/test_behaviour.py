"""Check the handler, the dispatch key and the mode of every release; the checks can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module

import pytest

from sgl_npu_patch.simulator import torch_npu
from sgl_npu_patch.verify import isolation
from sgl_npu_patch.verify.behaviour import declared
from sgl_npu_patch.verify.behaviour.machine import machine
from tests.npu_ops.bits import same_bits
from tests.npu_ops.test_graph_capture import attend
from tests.upstream.behaviour import (
    failed,
    gaps_of,
    native_subject,
    not_applicable,
    subject,
    verdicts,
)
from tests.upstream.releases import (
    FORKS_NATIVE,
    FORKS_PATCHED,
    RELEASES_NATIVE,
    RELEASES_PATCHED,
)
from tests.upstream.test_statuses import expected_gaps, expected_statuses
from tests.upstream.trees import sampled

UPSTREAM_OPS = "sglang.srt.hardware_backend.npu.batch_invariant_ops.npu_batch_invariant_ops"
GROUPS = ("handler", "dispatch", "batch_invariant", "npu_ops")
GAPS_OF_OTHER_GROUPS = {
    "min_p_type_error",
    "neighbour_dependent_draw",
    "gumbel_upper_bound",
    "top_p_dtype",
    "penalties_counted_wrongly",
    "pytorch_draw_depends_on_neighbours",
}
NATIVE = (*RELEASES_NATIVE, *FORKS_NATIVE)

# The releases where upstream forgot the gate for every backend, so that the patch adds one.
NO_RADIX_GATE = ("0.5.3.post2", "0.5.3.post3")
WITHOUT_ENABLE_BMM = RELEASES_PATCHED[: RELEASES_PATCHED.index("0.5.4.post1")]

HANDLER_SHAPES = (
    *("0.5.3rc2", "0.5.3.post2", "0.5.4.post1", "0.5.9", "0.5.12"),
    *("0.5.13", "0.5.16", "0.5.19", "0.5.23"),
)
"""One of each shape of what is executed here; the sampler and attention have tests of their own."""

# Took over the call of the second version of fused attention, for which Ascend's extension has no
# batch-invariant operator.
CALLS_V2 = ("lsglang==1.3.1",)

# One of each shape of the handler, of the lists and of the graph handler.
NATIVE_SHAPES = ("0.5.13", "0.5.14", "0.5.17", "0.5.19", "0.5.21", "0.5.23", "lsglang==1.5.3")

UPSTREAMS_PROMISE = "batch_invariant.attention_v2_is_replaced"
OUR_PROMISES = {
    "batch_invariant.a_missing_extension_is_said",
    "batch_invariant.extension_1_is_enough",
    "batch_invariant.softmax_is_batch_invariant",
    "batch_invariant.sum_is_batch_invariant",
    "npu_ops.a_missing_overload_says_which_version_has_it",
    "npu_ops.log_softmax_may_be_asked_to_convert",
}


def meaningless(version: str) -> set[str]:
    """Return the checks that have no meaning on a patched release."""
    status = expected_statuses(version)
    native = version in NATIVE
    keeps_cache = status["radix_cache"] != "withheld" and version not in NO_RADIX_GATE
    keeps_sampling = status["sampling_backend"] not in ("withheld", "not-needed")
    named = {
        "radix_cache.off_where_prefill_ignores_it": keeps_cache,
        "radix_cache.on_where_prefill_reads_it": not keeps_cache,
        "radix_cache.deepseek_is_refused_as_before": native,
        "radix_cache.deepseek_is_accepted": not native,
        "sampling_backend.ascend_becomes_pytorch_where_it_cannot_draw": keeps_sampling,
        "sampling_backend.ascend_is_kept": not keeps_sampling,
        "device_dispatch.an_npu_has_its_own_key": status["device_dispatch"] == "not-needed",
        "device_dispatch.other_devices_keep_their_key": status["device_dispatch"] == "not-needed",
        UPSTREAMS_PROMISE: True,
        "launch_guards.no_prompt_is_cut": keeps_cache,
        "launch_guards.what_nothing_replaces_is_said": not native and version not in CALLS_V2,
        "batch_invariant.without_bmm_it_alone_stays_native": version in WITHOUT_ENABLE_BMM,
        "batch_invariant.a_scoped_mode_keeps_the_choice_of_bmm": version in WITHOUT_ENABLE_BMM,
    }
    return {name for name, holds in named.items() if holds}


@pytest.mark.parametrize(
    "version", sampled((*RELEASES_PATCHED, *FORKS_PATCHED, *NATIVE), HANDLER_SHAPES)
)
def test_a_patched_tree_keeps_every_promise(version: str) -> None:
    found = verdicts(subject(version), *GROUPS)
    assert failed(found) == {}
    assert not_applicable(found) == meaningless(version)


@pytest.mark.parametrize("version", sampled(NATIVE_SHAPES, ("0.5.23",)))
def test_upstreams_form_fails_by_its_gaps(version: str) -> None:
    found = verdicts(native_subject(version), *GROUPS)
    assert gaps_of(failed(found)) == expected_gaps(version) - GAPS_OF_OTHER_GROUPS
    assert not_applicable(found) == meaningless(version) - {UPSTREAMS_PROMISE} | OUR_PROMISES


@pytest.mark.parametrize("upstreams_first", [True, False])
def test_a_graph_renews_lengths_whichever_handler_was_registered_last(
    upstreams_first: bool,
) -> None:
    """Nothing in the releases imports upstream's module any more; a fork may."""
    with machine(subject("0.5.23")) as on:
        steps: list[Callable[[], object]] = [lambda: import_module(UPSTREAM_OPS), on.enable]
        for step in steps if upstreams_first else reversed(steps):
            step()
        operator = on.torch_npu.npu_fused_infer_attention_score
        expected = attend([5, 2], operator)[0]
        with torch_npu.Graph() as graph:
            captured, _ = attend([3, 3], operator)
        assert not same_bits(captured, expected)
        graph.replay(actual_seq_lengths_kv=[5, 2])
        assert same_bits(captured, expected)
        assert torch_npu.native_calls == []


def test_the_checks_run_in_a_process_of_their_own() -> None:
    of = subject("0.5.12.post1")
    groups = ("dispatch", "npu_ops")
    request = {**asdict(of), "package": str(of.package), "base": str(of.base), "only": []}
    found = isolation.run(groups, request)
    assert [each for each in found if each.verdict == "fail"] == []
    assert [each.id for each in found] == [each.id for group in groups for each in declared(group)]
