"""Check how upstream's own batch-invariant mode is handed over to npu_ops, and where it is not."""

from __future__ import annotations

import pytest

from tests.codemods.test_batch_invariant import hand_over_edits, with_edits
from tests.helpers import (
    NATIVE_BRANCH,
    NATIVE_ENABLE,
    NATIVE_OPS,
    OPS,
    OPS_DISABLE,
    OPS_ENABLE,
    UPSTREAM_OPS,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    judge,
    native_ops,
)

SEAM = "hardened_operators"


def hardened() -> str:
    return with_edits(str(native_ops()[OPS]), hand_over_edits(""))


def test_hands_over_before_upstreams_branch_and_rewrites_nothing() -> None:
    check_applied(SEAM, native_ops(), {OPS: hardened()}, vendored=["npu_ops"])


def test_a_hardened_tree_carries_the_change() -> None:
    _, _, after = judge(SEAM, native_ops())
    check_already(SEAM, dict(after))
    for seam in ("batch_invariant", "npu_ops"):
        check_already(seam, dict(after))


def test_a_tree_without_upstreams_branch_is_left_to_the_other_series() -> None:
    check_not_needed(SEAM, {}, match="series deterministic contains these repairs")


def test_a_branch_that_imports_at_module_level_under_a_condition_is_upstreams_too() -> None:
    inner = NATIVE_BRANCH[NATIVE_BRANCH.index("        from") : NATIVE_BRANCH.index("        _LIB")]
    files = native_ops(NATIVE_ENABLE.replace(inner, ""))
    moved = f"    from {UPSTREAM_OPS} import npu_attention, npu_mm\n"
    text = str(files[OPS]).replace("    import torch_npu\n", "    import torch_npu\n" + moved)
    outcome, _, _ = judge(SEAM, {**files, OPS: text})
    assert outcome.status == "pending"


@pytest.mark.parametrize(
    "added",
    [
        'if enable_bmm:\n            _LIB.impl("aten::bmm", npu_bmm, key)',
        '_LIB.impl("aten::mean.dim", npu_mean, key)',
        "torch_npu._npu_fused_infer_attention_score_get_max_workspace = workspace",
        "import torch_npu",
        "return",
    ],
)
def test_a_branch_may_do_what_npu_ops_does(added: str) -> None:
    outcome, _, _ = judge(SEAM, native_ops(f"{NATIVE_ENABLE}        {added}\n"))
    assert outcome.status == "pending"


@pytest.mark.parametrize(
    "added",
    [
        '_LIB.impl("aten::sum", npu_sum, key)',
        "_LIB.impl(name, npu_mm, key)",
        "torch_npu.npu_gemma_rms_norm = gemma",
        "torch_npu.npu_fused_infer_attention_score_v2 = attention_v2",
        "elsewhere.npu_add_rms_norm = norm",
        "warm_up()",
        "for name in NAMES:\n            rebind(name)",
    ],
)
def test_what_npu_ops_does_not_do_is_not_put_out_of_force(added: str) -> None:
    check_conflict(
        SEAM,
        native_ops(f"{NATIVE_ENABLE}        {added}\n"),
        match="replacements of operators that npu_ops replaces too",
        at="def enable_batch_invariant_mode",
    )


def test_the_other_half_of_a_test_that_is_not_plain_may_run_on_an_npu_too() -> None:
    enable = NATIVE_ENABLE.replace("if not _is_npu:", "if not _is_npu and enable_bmm:")
    check_conflict(SEAM, native_ops(enable), match="found _bmm = torch.bmm")


def test_a_branch_before_the_hand_over_would_be_taken_first() -> None:
    branch = (
        f"    if is_npu():\n        from {UPSTREAM_OPS} import npu_mm\n\n"
        '        torch.library.Library("aten", "IMPL").impl("aten::mm", npu_mm, "NPU")\n'
        "        return\n"
    )
    enable = OPS_ENABLE.replace("    key =", f"{branch}    key =")
    check_conflict(SEAM, native_ops(enable), match="behind the flag's check and the dispatch key")


def test_a_mode_that_is_left_otherwise_on_an_npu_is_a_conflict() -> None:
    disable = OPS_DISABLE.replace("    _MODE = False\n", "    restore_npu()\n    _MODE = False\n")
    check_conflict(
        SEAM, native_ops(disable=disable), match="what disable_batch_invariant_mode does"
    )


def test_upstreams_branch_without_its_module_is_a_conflict() -> None:
    files = {name: text for name, text in native_ops().items() if name != NATIVE_OPS}
    check_conflict(SEAM, files, match="restore the file from upstream")


def test_names_what_stays_open() -> None:
    uses = {
        "srt/attention.py": "def forward_extend(q):\n"
        "    return torch_npu.npu_fused_infer_attention_score_v2(q)\n"
    }
    outcome, _, _ = judge(SEAM, {**native_ops(), **uses})
    assert outcome.gaps == ("fused_attention_v2_not_replaced",)
    assert judge(SEAM, native_ops())[0].gaps == ()
