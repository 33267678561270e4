"""Check handlers that return early or hand a part of their branch to another method."""

from __future__ import annotations

import pytest

from tests.helpers import ATTENTION as BACKEND
from tests.helpers import (
    COMMON,
    DISPATCH,
    HANDLER,
    SERVER_ARGS,
    attention,
    check_applied,
    check_conflict,
    check_edited,
    check_withheld,
    common,
    server_args,
)
from tests.helpers import LOOPING_BRANCH as LOOPING

IF_ENABLED = "    if self.enable_deterministic_inference:\n"
PAIR = """\
        self.sampling_backend = "pytorch"
        logger.warning("the sampler is pytorch's now")
"""
GATE = """\
        if self.attention_backend not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND:
            self.disable_radix_cache = True
"""


def _early(leave: str = "return") -> str:
    head, body = HANDLER.split(IF_ENABLED)
    lines = [line[4:] if line.strip() else line for line in body.splitlines(keepends=True)]
    test = f"    if not self.enable_deterministic_inference:\n        {leave}\n"
    return head + test + "".join(lines)


def _split(part: str, *, call: str = "self._part()", more: str = "", head: str = "") -> str:
    assert part in HANDLER
    method = f"{head}def _part(self):\n" + "".join(
        line[4:] for line in part.splitlines(keepends=True)
    )
    return HANDLER.replace(part, f"        {call}\n") + f"\n{method}{more}"


@pytest.mark.parametrize("leave", ["return", "return None"])
def test_a_handler_that_returns_early_is_edited_behind_that(leave: str) -> None:
    files = {SERVER_ARGS: server_args(handler=_early(leave))}
    check_edited(
        "sampling_backend", files, SERVER_ARGS, '    if self.sampling_backend != "ascend":'
    )
    check_edited("launch_guards", files, SERVER_ARGS, "\n        if is_npu():\n")


@pytest.mark.parametrize("leave", ["return 1", "raise ValueError", "pass"])
def test_a_handler_that_is_left_otherwise_is_a_conflict(leave: str) -> None:
    files = {SERVER_ARGS: server_args(handler=_early(leave))}
    check_conflict("launch_guards", files, match="found 0", at="def _handle_deterministic")


def test_an_early_return_before_a_branch_is_a_conflict() -> None:
    twice = IF_ENABLED.replace("if self", "if not self") + "        return\n" + IF_ENABLED
    files = {SERVER_ARGS: server_args(handler=HANDLER.replace(IF_ENABLED, twice))}
    check_conflict("launch_guards", files, match="found 2", at="def _handle_deterministic")


def test_the_assignment_is_guarded_in_the_part_that_holds_it() -> None:
    files = {SERVER_ARGS: server_args(handler=_split(PAIR))}
    text = check_edited("sampling_backend", files, SERVER_ARGS)
    assert text.index("def _part") < text.index('if self.sampling_backend != "ascend":')


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(_split(PAIR, more="\ndef again(self):\n    self._part()\n"), id="two callers"),
        pytest.param(_split(PAIR, call="if self.x:\n            self._part()"), id="conditional"),
        pytest.param(_split(PAIR, head="@cached\n"), id="decorated"),
        pytest.param(_split(PAIR).replace("_part(self):", "_part(self, x=1):"), id="parameter"),
        pytest.param(
            _split(PAIR).replace(
                "_part(self):\n", "_part(self):\n    if self.x:\n        return\n"
            ),
            id="left early",
        ),
        pytest.param(_split(PAIR, more="\ndef _part(self):\n    pass\n"), id="defined twice"),
        pytest.param(
            _split(PAIR, more="\ndef _more(self):\n" + PAIR[4:].replace("\n    ", "\n")).replace(
                "self._part()\n", "self._part()\n        self._more()\n"
            ),
            id="two parts",
        ),
    ],
)
def test_a_part_that_does_not_always_and_only_run_with_the_branch_is_a_conflict(
    handler: str,
) -> None:
    check_conflict("sampling_backend", {SERVER_ARGS: server_args(handler=handler)}, match="")


def test_a_gate_in_a_part_keeps_the_cache_off() -> None:
    files = {SERVER_ARGS: server_args(handler=_split(GATE)), BACKEND: attention(LOOPING)}
    check_withheld("radix_cache", files, match="ignores a cached prefix")


def test_a_gate_in_a_part_that_is_left_early_is_a_conflict() -> None:
    handler = _split(GATE).replace(
        "_part(self):\n", "_part(self):\n    if self.x:\n        return\n"
    )
    files = {SERVER_ARGS: server_args(handler=handler), BACKEND: attention(LOOPING)}
    check_conflict("radix_cache", files, match="prefill")


FLAT = """\
def get_dispatch_device_backend():
    if is_cuda_alike():
        return "CUDA"
    if is_xpu():
        key = "XPU"
        return key
    raise RuntimeError("no accelerator")
"""


def test_a_dispatch_that_returns_early_gets_a_branch_before_the_raise() -> None:
    npu = '    if is_npu():\n        key = "NPU"\n        return key\n    raise'
    check_applied(
        "device_dispatch", {COMMON: common(FLAT)}, {COMMON: common(FLAT.replace("    raise", npu))}
    )
    plain = FLAT.replace('key = "XPU"\n        return key', 'return "XPU"')
    npu = '    if is_npu():\n        return "NPU"\n    raise'
    check_applied(
        "device_dispatch",
        {COMMON: common(plain)},
        {COMMON: common(plain.replace("    raise", npu))},
    )


@pytest.mark.parametrize(
    "source",
    [
        FLAT.replace("        return key\n", ""),
        FLAT.replace("return key", "return None"),
        FLAT.replace('"XPU"', '"HPU"'),
        FLAT.replace("    raise", "    note()\n    raise"),
        DISPATCH.replace("    else:\n        raise", "    raise"),
    ],
)
def test_a_dispatch_that_may_reach_the_raise_otherwise_is_a_conflict(source: str) -> None:
    check_conflict("device_dispatch", {COMMON: common(source)}, match="expected")
