"""What the kit knows of npu_ops is what npu_ops does."""

from __future__ import annotations

import ast
import importlib
from typing import Any

from sgl_npu_patch.kit import facts
from tests.upstream.releases import release_tree


def test_the_operators_are_those_of_npu_ops(npu_ops: Any, package: str) -> None:
    assert tuple(facts.REQUIRED) == npu_ops._REQUIRED_OPERATORS
    assert set(facts.ATEN) == set(npu_ops._aten_kernels(enable_bmm=True))
    rebound = (npu_ops._ATTENTION, npu_ops._MAX_WORKSPACE, npu_ops._ADD_RMS_NORM)
    assert rebound == facts.REBOUND
    assert set(facts.FOR_GRAPHS) == {
        f"{npu_ops._EXTENSION_ATTENTION}.out",
        npu_ops._EXTENSION_MAX_WORKSPACE,
        npu_ops._EXTENSION_INFER_OUTPUT,
    }
    guards = importlib.import_module(f"{package}.launch_guards")
    guarded = {name: each.wanted for name, each in facts.ENVIRONMENT.items() if each.guarded}
    assert guarded == guards._COLLECTIVES


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
