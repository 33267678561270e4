"""Check that launches of native releases run through the guards, in the form of their handler."""

from __future__ import annotations

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from tests.helpers import (
    HANDLER,
    SERVER_ARGS,
    Files,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    declaring,
    judge,
    native_ops,
    server_args,
)

SEAM = "hardened_launch"
PATH = f"{PROJECT.vendor_folder}/launch_guards.py"
HEAD = """\

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import (
                launch_guards,
            )

"""
ASSIGNED = HEAD + "            launch_guards.apply(self)\n"
DECLARED = (
    HEAD
    + "            decided = launch_guards.decide(cfg)\n"
    + '            declare_resolution(self, "launch_guards", **decided)\n'
)


def _native(handler: str) -> Files:
    return {**native_ops(), SERVER_ARGS: server_args(handler=handler)}


def test_arguments_are_assigned_where_the_handler_assigns_them() -> None:
    check_applied(
        SEAM,
        _native(HANDLER),
        {SERVER_ARGS: server_args(handler=HANDLER + ASSIGNED)},
        vendored=["launch_guards"],
    )


def test_changes_are_declared_where_the_handler_declares_them() -> None:
    handler = declaring(HANDLER)
    check_applied(
        SEAM,
        _native(handler),
        {SERVER_ARGS: server_args(handler=handler + DECLARED)},
        vendored=["launch_guards"],
    )


def test_a_declaration_before_the_branch_does_not_tell_the_form() -> None:
    handler = HANDLER.replace(
        "    if self.en", "    declare_resolution(other, 'x', y=1)\n    if self.en", 1
    )
    check_applied(
        SEAM,
        _native(handler),
        {SERVER_ARGS: server_args(handler=handler + ASSIGNED)},
        vendored=["launch_guards"],
    )


@pytest.mark.parametrize("handler", [HANDLER, declaring(HANDLER)], ids=["assigned", "declared"])
def test_a_hardened_tree_carries_the_change(handler: str) -> None:
    after = dict(judge(SEAM, _native(handler))[2])
    check_already(SEAM, after)
    check_already("launch_guards", after)


def test_the_gap_is_that_of_a_tree_without_the_guards() -> None:
    outcome, _, _ = judge("launch_guards", _native(declaring(HANDLER)))
    assert (outcome.status, outcome.gaps) in [
        ("upstream", ("launch_guards_missing",)),
        # Half of upstream's adaptation: its sampler is not there.
        ("pending", ()),
    ]


def test_a_tree_without_upstreams_branch_is_left_to_the_other_series() -> None:
    check_not_needed(SEAM, {}, match="series deterministic contains these repairs")


@pytest.mark.parametrize(
    ("handler", "match"),
    [
        pytest.param(
            HANDLER + ASSIGNED.replace("apply", "decide"),
            "one in another place or form",
            id="what is decided is not applied",
        ),
        pytest.param(
            declaring(HANDLER) + DECLARED.replace("decide(cfg)", "apply(cfg)"),
            "one in another place or form",
            id="a view is assigned to",
        ),
        pytest.param(
            declaring(HANDLER) + DECLARED.replace("            declare", "            note"),
            "one in another place or form",
            id="what is decided is not declared",
        ),
        pytest.param(
            declaring(HANDLER)
            .replace("resolving_view(self)", "self")
            .replace("declare_resolution", "note"),
            "cfg as a view",
            id="arguments by another name are assigned",
        ),
        pytest.param(
            HANDLER.replace(
                "        if self.tp", "        declare_resolution(self)\n        if self.tp"
            ),
            "self as a parameter, declare_resolution(self, ...)",
            id="declared without a view to read through",
        ),
    ],
)
def test_a_form_that_is_not_clear_is_a_conflict(handler: str, match: str) -> None:
    check_conflict(SEAM, _native(handler), match=match, at="def _handle_deterministic_inference")


def test_a_foreign_module_in_the_place_of_ours_is_a_conflict() -> None:
    check_conflict(SEAM, {**_native(HANDLER), PATH: "x = 1\n"}, match="did not write")
