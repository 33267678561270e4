"""Check that every launch runs through the guards, or that the run says why it cannot."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from tests.helpers import (
    HANDLER,
    NATIVE_OPS,
    OPS,
    OPS_ENABLE,
    SERVER_ARGS,
    batch_invariant_ops,
    check_already,
    check_applied,
    check_conflict,
    judge,
    server_args,
)

SEAM = "launch_guards"
PATH = f"{PROJECT.vendor_folder}/launch_guards.py"
CALL = """\

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import (
                launch_guards,
            )

            launch_guards.apply(self)
"""


def _args(handler: str, **parts: str) -> dict[str, str]:
    return {SERVER_ARGS: server_args(handler=handler, **parts)}


def test_appends_the_call_to_the_branch() -> None:
    outcome = check_applied(SEAM, {}, _args(HANDLER + CALL), vendored=["launch_guards"])
    assert outcome.sites[0].line == len(server_args().splitlines())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            HANDLER + "\n    self.done = True\n",
            HANDLER + CALL + "\n    self.done = True\n",
            id="statements behind the branch stay behind it",
        ),
        pytest.param(
            HANDLER + "    else:\n        relax(self)\n",
            HANDLER + CALL + "    else:\n        relax(self)\n",
            id="an else of the branch is not touched",
        ),
        pytest.param(
            HANDLER.replace("    if self.en", "    if self.off:\n        return\n    if self.en"),
            HANDLER.replace("    if self.en", "    if self.off:\n        return\n    if self.en")
            + CALL,
            id="a return in front of the branch skips all of it",
        ),
    ],
)
def test_stays_inside_the_branch(before: str, after: str) -> None:
    check_applied(SEAM, _args(before), _args(after), vendored=["launch_guards"])


def test_imports_is_npu_where_the_module_lacks_it() -> None:
    local = CALL.replace("\n", "\n        from sglang.srt.utils.common import is_npu\n\n", 1)
    check_applied(
        SEAM,
        _args(HANDLER, imports=""),
        _args(HANDLER + local, imports=""),
        vendored=["launch_guards"],
    )


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda s: s.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(lambda s: s.rstrip("\n").encode(), id="no final newline"),
        pytest.param(lambda s: b"\xef\xbb\xbf" + s.encode(), id="BOM"),
        pytest.param(lambda s: b"# coding: latin-1\n# \xe9\n" + s.encode(), id="latin-1 cookie"),
    ],
)
def test_keeps_every_other_byte(shape: Callable[[str], bytes]) -> None:
    check_applied(
        SEAM,
        {SERVER_ARGS: shape(server_args())},
        {SERVER_ARGS: shape(server_args(handler=HANDLER + CALL))},
        vendored=["launch_guards"],
    )


def test_hands_over_the_arguments_by_the_handlers_own_name() -> None:
    def hook(handler: str) -> str:
        text = handler.replace("_handle", "handle", 1).replace("self", "server_args")
        return f"import os\n\nfrom sglang.srt.utils.common import is_npu\n\n\n{text}"

    path = "srt/arg_groups/attention_hook.py"
    check_applied(
        SEAM,
        {**_args("def other(self):\n    pass\n"), path: hook(HANDLER)},
        {path: hook(HANDLER + CALL)},
        vendored=["launch_guards"],
    )


def test_hands_over_what_holds_the_flag_not_the_first_parameter() -> None:
    handler = HANDLER.replace("(self)", "(self, args)").replace("self.", "args.")
    check_applied(
        SEAM,
        _args(handler),
        _args(handler + CALL.replace("(self)", "(args)")),
        vendored=["launch_guards"],
    )


def test_guards_that_are_there_are_ours() -> None:
    files = judge(SEAM)[2]
    check_already(SEAM, {SERVER_ARGS: files[SERVER_ARGS], PATH: files[PATH]})


def test_a_call_without_the_module_gets_the_module() -> None:
    check_applied(SEAM, _args(HANDLER + CALL), {}, vendored=["launch_guards"])


def test_a_module_without_the_call_gets_the_call() -> None:
    module = judge(SEAM)[2][PATH]
    check_applied(SEAM, {PATH: module}, _args(HANDLER + CALL))


@pytest.mark.parametrize(
    ("handler", "match"),
    [
        pytest.param(
            HANDLER.replace(
                "        if self.tp", "        if self.big:\n            return\n        if self.tp"
            ),
            "a return inside the branch",
            id="some launches return early",
        ),
        pytest.param(HANDLER + "        return\n", "a return inside", id="the branch returns"),
        pytest.param(
            HANDLER + CALL.replace("if is_npu()", "if False"),
            "one in another place",
            id="the call is dead code",
        ),
        pytest.param(
            HANDLER + textwrap.indent(CALL.replace("\n        if", "        if", 1), "    "),
            "one in another place",
            id="the call depends on something else",
        ),
        pytest.param(
            HANDLER + CALL.replace("\n        ", "\n    "),
            "one in another place",
            id="the call is behind the branch",
        ),
        pytest.param(
            HANDLER.replace("if self.en", "if en"), "if ...enable_det", id="the flag has no owner"
        ),
        pytest.param(
            HANDLER.replace("if self.enable", "if get_args().enable"),
            "if ...enable_det",
            id="the flag is of an object without a name",
        ),
    ],
)
def test_a_branch_that_is_not_clear_is_a_conflict(handler: str, match: str) -> None:
    check_conflict(SEAM, _args(handler), match=match, at="def _handle_deterministic_inference")


def test_a_name_that_the_module_has_only_sometimes_is_not_made_local() -> None:
    imports = "try:\n    from x import is_npu\nexcept ImportError:\n    pass\n"
    handler = HANDLER.replace("        if self.tp", "        prepare(is_npu())\n        if self.tp")
    check_conflict(
        SEAM,
        _args(handler, imports=imports),
        match="import is_npu at module level",
        at="def _handle",
    )


def test_a_foreign_module_in_the_place_of_ours_is_a_conflict() -> None:
    check_conflict(SEAM, {PATH: "x = 1\n"}, match="did not write")


def test_half_of_upstreams_adaptation_still_gets_the_guards() -> None:
    enable = OPS_ENABLE.replace("    key", "    from .npu_batch_invariant_ops import mm\n    key")
    check_applied(
        SEAM,
        {OPS: batch_invariant_ops(enable=enable), NATIVE_OPS: ""},
        _args(HANDLER + CALL),
        vendored=["launch_guards"],
    )
