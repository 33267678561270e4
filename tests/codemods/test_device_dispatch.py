"""Check that the accelerator's name is known for an NPU, and what else names one."""

from __future__ import annotations

import pytest

from tests.helpers import (
    COMMON,
    DISPATCH,
    OPS,
    OPS_ENABLE,
    batch_invariant_ops,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    check_upstream,
    common,
    judge,
)

SEAM = "device_dispatch"
NPU = '    elif is_npu():\n        key = "NPU"\n'
WITH_NPU = DISPATCH.replace("    else:\n", f"{NPU}    else:\n")


def test_adds_a_branch_before_the_one_that_raises() -> None:
    check_applied(SEAM, {}, {COMMON: common(WITH_NPU)})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            DISPATCH.replace('elif is_xpu():\n        key = "XPU"\n    ', ""),
            WITH_NPU.replace('elif is_xpu():\n        key = "XPU"\n    ', ""),
            id="CUDA only",
        ),
        pytest.param(
            DISPATCH.replace("    else:", "    # none of them\n    else:"),
            WITH_NPU.replace("    else:", "    # none of them\n    else:"),
            id="a comment above the else stays there",
        ),
        pytest.param(
            DISPATCH.replace("key", "self.key"),
            WITH_NPU.replace("key", "self.key"),
            id="an attribute",
        ),
        pytest.param("@cache\n" + DISPATCH, "@cache\n" + WITH_NPU, id="a decorated function"),
        pytest.param(DISPATCH.replace("    ", "\t"), WITH_NPU.replace("    ", "\t"), id="tabs"),
        pytest.param(
            DISPATCH.replace("    ", "  "), WITH_NPU.replace("    ", "  "), id="two spaces"
        ),
        pytest.param(
            DISPATCH.replace("    return key\n", "    return key"),
            WITH_NPU.replace("    return key\n", "    return key"),
            id="no final newline",
        ),
    ],
)
def test_keeps_the_shape_of_the_function(before: str, after: str) -> None:
    check_applied(SEAM, {COMMON: common(before)}, {COMMON: common(after)})


def test_keeps_crlf_and_bom() -> None:
    def shaped(dispatch: str) -> dict[str, bytes]:
        return {COMMON: b"\xef\xbb\xbf" + common(dispatch).replace("\n", "\r\n").encode()}

    check_applied(SEAM, shaped(DISPATCH), shaped(WITH_NPU))


def test_finds_the_function_in_another_module_that_imports_is_npu() -> None:
    head = "from sglang.srt.utils.common import is_npu\n\n\n"
    check_applied(
        SEAM,
        {COMMON: common(""), "srt/platforms.py": head + DISPATCH},
        {"srt/platforms.py": head + WITH_NPU},
    )


@pytest.mark.parametrize(
    "branch",
    [
        pytest.param(NPU, id="assigned"),
        pytest.param('    elif is_npu():\n        return "NPU"\n', id="returned"),
        pytest.param('    elif _is_npu:\n        key = "NPU"\n', id="asked of a constant"),
    ],
)
def test_a_branch_that_gives_npu_is_upstreams_or_ours(branch: str) -> None:
    present = {COMMON: common(DISPATCH.replace("    else:\n", f"{branch}    else:\n"))}
    check_upstream(SEAM, present)
    ours = "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"
    check_already(SEAM, {**present, ours: judge("npu_ops")[2][ours]})


def test_registrations_under_a_literal_need_no_function() -> None:
    enable = OPS_ENABLE.replace(", key)", ', "CUDA")')
    check_not_needed(
        SEAM,
        {COMMON: common(""), OPS: batch_invariant_ops(enable=enable)},
        match='literal "CUDA"',
    )


@pytest.mark.parametrize(
    "enable",
    [
        pytest.param(OPS_ENABLE, id="the key comes from elsewhere"),
        pytest.param(OPS_ENABLE.replace(", key)", ', "MPS")'), id="a literal of another device"),
        pytest.param(OPS_ENABLE.replace("_LIB.impl(", "register("), id="nothing is registered"),
    ],
)
def test_no_function_and_no_literal_is_a_conflict(enable: str) -> None:
    check_conflict(
        SEAM,
        {COMMON: common(""), OPS: batch_invariant_ops(enable=enable)},
        match="or registrations under a literal",
        at="def enable_batch_invariant_mode",
    )


@pytest.mark.parametrize(
    ("dispatch", "match"),
    [
        pytest.param(
            DISPATCH.replace("    else:\n        raise", "    if not key:\n        raise"),
            "the else",
            id="no else raises",
        ),
        pytest.param(
            DISPATCH.replace('key = "XPU"', "key = xpu_key()"),
            "an assignment of",
            id="the key is computed",
        ),
        pytest.param(
            DISPATCH.replace("key =", "return"), "an assignment of", id="the key is returned"
        ),
        pytest.param(
            DISPATCH.replace('key = "XPU"', 'key = "XPU"\n        warm_up()'),
            "an assignment of",
            id="the branch does more",
        ),
        pytest.param(
            DISPATCH.replace(
                "    else:\n", '    elif is_npu():\n        key = "PRIVATEUSE1"\n    else:\n'
            ),
            "gives something else",
            id="an NPU has another key already",
        ),
        pytest.param(
            DISPATCH.replace(
                "    else:\n", '    elif is_npu():\n        raise OSError("NPU")\n    else:\n'
            ),
            "gives something else",
            id="an NPU is refused by name",
        ),
        pytest.param(DISPATCH + "\n\n" + DISPATCH, "2 definitions", id="defined twice"),
        pytest.param(
            DISPATCH + "\n\nget_dispatch_device_backend = cache(get_dispatch_device_backend)\n",
            "that an assignment replaces",
            id="replaced by an assignment",
        ),
        pytest.param(
            "if True:\n" + "".join(f"    {line}\n" for line in DISPATCH.splitlines()),
            "under no condition",
            id="defined under a condition",
        ),
    ],
)
def test_is_a_conflict(dispatch: str, match: str) -> None:
    check_conflict(SEAM, {COMMON: common(dispatch)}, match=match)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("", id="not at all"),
        pytest.param("if TYPE_CHECKING:\n    from x import is_npu\n\n\n", id="for types only"),
        pytest.param("is_npu = True\n\n\n", id="as a variable"),
        pytest.param("def f():\n    from x import is_npu\n\n\n", id="in another function"),
    ],
)
def test_a_module_that_does_not_have_is_npu_is_a_conflict(head: str) -> None:
    check_conflict(
        SEAM,
        {COMMON: common(""), "srt/platforms.py": head + DISPATCH},
        match="import is_npu at module level",
        at="def get_dispatch_device_backend",
    )
