"""Spoil the handler of patched native releases, and insist that the checks find it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.verify import off_npu
from sgl_npu_patch.verify.static import judged
from tests.helpers import ROOT, MemoryTree
from tests.upstream.behaviour import failed, subject_of, verdicts
from tests.upstream.edited import SERVER_ARGS, edit, judge, lay_out, result, sources
from tests.upstream.releases import FORKS_NATIVE, RELEASES_NATIVE, release_tree
from tests.upstream.test_statuses import expected_gaps, expected_statuses
from tests.upstream.trees import sampled

NATIVE = (*RELEASES_NATIVE, *FORKS_NATIVE)
GUARDS = f"{PROJECT.vendor_folder}/launch_guards.py"
HOOK = "srt/arg_groups/attention_hook.py"
ASSIGNED, CONFIGURED, DECLARED = "0.5.13", "0.5.16", "0.5.23"
"""A release whose flags are read, one that folds them before, one whose arguments are sealed."""


@cache
def _patched(version: str) -> Mapping[str, bytes]:
    files = sources(version)
    return result(files, judge(files))


@pytest.mark.parametrize("version", sampled(NATIVE))
def test_a_line_is_rewritten_where_a_model_is_refused_and_nowhere_else(version: str) -> None:
    before, after = sources(version), _patched(version)
    handlers = {name: data for name, data in before.items() if name in (SERVER_ARGS, HOOK)}
    assert len(_deleted(handlers, after)) == int("deepseek_refused" in expected_gaps(version))


def _deleted(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    return [
        line
        for name, data in before.items()
        if data != after[name]
        for line in difflib.unified_diff(
            data.decode().splitlines(), after[name].decode().splitlines(), n=0, lineterm=""
        )
        if line.startswith("-") and not line.startswith("---")
    ]


def _edited(version: str, path: str, old: str, new: str) -> dict[str, str]:
    files = dict(_patched(version))
    edit(files, path, (old, new))
    tree = lay_out(version, files)
    of = subject_of(tree, expected_statuses(version), release_tree(version) / "sglang")
    return failed(verdicts(of, "handler"))


@pytest.mark.parametrize("version", sampled((CONFIGURED, DECLARED), (DECLARED,)))
def test_flags_alone_do_not_switch_graphs_off(version: str) -> None:
    found = _edited(version, GUARDS, "is _GRAPH_FLAGS and", "is None and")
    assert "cuda_graph_config" in found["launch_guards.capture_and_compilation_are_off"]


def test_flags_are_enough_where_they_are_read() -> None:
    assert _edited(ASSIGNED, GUARDS, "is _GRAPH_FLAGS and", "is None and") == {}


def test_sealed_arguments_are_not_assigned() -> None:
    assign = (
        "for name, value in decided.items():\n                setattr(server_args, name, value)"
    )
    found = _edited(
        DECLARED, HOOK, 'declare_resolution(server_args, "launch_guards", **decided)', assign
    )
    assert "declared" in found["launch_guards.capture_and_compilation_are_off"]


def test_one_phase_of_graphs_is_not_enough() -> None:
    found = _edited(DECLARED, GUARDS, '_PHASES = ("decode", "prefill")', '_PHASES = ("decode",)')
    assert "prefill" in found["launch_guards.capture_and_compilation_are_off"]


def test_what_nothing_replaces_has_to_be_said() -> None:
    found = _edited(DECLARED, GUARDS, "and (why := _why_not_replaced(config))", "and False")
    assert [*found] == ["launch_guards.what_nothing_replaces_is_said"]


def _off_npu(version: str, *pairs: tuple[str, str]) -> list[str]:
    """Return what `verify --base` finds in the handler's file, edited further."""
    before, after = sources(version), dict(_patched(version))
    edit(after, HOOK if version == DECLARED else SERVER_ARGS, *pairs)
    trees = (MemoryTree({ROOT / name: data for name, data in f.items()}) for f in (after, before))
    patched, base = (judged.judge(tree) for tree in trees)
    return [each.id for each in off_npu.check(patched, base) if each.verdict == "fail"]


@pytest.mark.parametrize("version", sampled((ASSIGNED, CONFIGURED, DECLARED), (CONFIGURED,)))
def test_off_an_npu_a_patched_handler_does_what_it_did(version: str) -> None:
    assert _off_npu(version) == []


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        pytest.param(
            CONFIGURED, '"triton", "ascend"]', '"ascend"]', id="a backend is refused that was not"
        ),
        pytest.param(
            CONFIGURED, '"triton", "ascend"]', '"triton", "fa4"]', id="another is accepted"
        ),
        pytest.param(
            ASSIGNED,
            'self.attention_backend not in ["fa3", "triton", "asc',
            'self.attention_backend in ["fa3", "triton", "asc',
            id="the refusal is turned round",
        ),
        pytest.param(
            CONFIGURED,
            "launch_guards.apply(self)\n",
            "launch_guards.apply(self)\n            self.disable_cuda_graph = True\n",
            id="something is set on every device",
        ),
        pytest.param(
            DECLARED,
            "        if is_npu():\n            from",
            "        if not is_npu():\n            from",
            id="the guards run elsewhere",
        ),
    ],
)
def test_off_an_npu_other_differences_are_found(version: str, old: str, new: str) -> None:
    assert _off_npu(version, (old, new))
