"""What the kit knows of npu_ops is what npu_ops does."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from sgl_npu_patch.kit import facts
from sgl_npu_patch.npu_ops.launch_guards import ENVIRONMENT
from tests.kit.simulated import ROOT
from tests.upstream.releases import release_tree


@pytest.mark.usefixtures("installed_extension")
def test_the_operators_are_those_of_npu_ops(npu_ops: Any) -> None:
    assert tuple(facts.REQUIRED) == npu_ops._REQUIRED_OPERATORS
    registered = set(npu_ops._aten_kernels(enable_bmm=True))
    assert set(facts.ATEN) <= registered
    assert {name.partition(".")[0].strip("_") for name in registered} - {
        name.partition(".")[0].strip("_") for name in facts.ATEN
    } == {"addbmm", "addmv", "baddbmm", "mv"}
    rebound = (npu_ops._ATTENTION, npu_ops._MAX_WORKSPACE, npu_ops._ADD_RMS_NORM)
    assert rebound == facts.REBOUND
    assert set(facts.FOR_GRAPHS) == {
        f"{npu_ops._EXTENSION_ATTENTION}.out",
        npu_ops._EXTENSION_MAX_WORKSPACE,
        npu_ops._EXTENSION_INFER_OUTPUT,
    }


def test_the_variables_are_those_of_the_page_and_of_sglang() -> None:
    page = (ROOT / "docs" / "launch.md").read_text("utf-8")
    rows = page.partition("<!-- variables -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    assert rows == [
        f"| `{name}` | {'not `AIV`' if each.wanted is None else f'`{each.wanted}`'} "
        f"| {each.purpose} |"
        for name, each in ENVIRONMENT.items()
    ]
    npu = release_tree("0.5.23") / "sglang" / "srt" / "hardware_backend" / "npu"
    text = b"".join(path.read_bytes() for path in npu.rglob("*.py"))
    read = [name for name in ENVIRONMENT if re.search(rf"\b{name}\b".encode(), text)]
    assert read == ["ASCEND_USE_FIA", "SGLANG_USE_FIA_NZ", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT"]
    assert b'"ASCEND_USE_FA"' in text


def test_the_arguments_of_attention_are_those_that_sglang_passes() -> None:
    root = release_tree("0.5.23")
    passed = {
        keyword.arg
        for path in root.rglob("*.py")
        if b"npu_fused_infer_attention_score" in (source := path.read_bytes())
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and "npu_fused_infer_attention_score" in (name := ast.unparse(call.func))
        and "_v2" not in name
        for keyword in call.keywords
        if keyword.arg is not None
    }
    assert {"query_rope", "block_table"} <= passed <= facts.PASSED
