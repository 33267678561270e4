"""Bring insertions of older versions up to date, and nothing that only looks like one."""

from __future__ import annotations

import libcst as cst
import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.refresh import refresh

OLD = """\
def draw(x):
    noise = x / 2
    if is_npu():
        # The largest hash would give infinite noise, and a filtered token would win.
        noise.clamp_(max=1.0 - 2.0**-32)
    return noise
"""


def function(source: str) -> cst.FunctionDef:
    (found,) = cst.parse_module(source).body
    assert isinstance(found, cst.FunctionDef)
    return found


def test_the_form_of_an_older_version_is_replaced() -> None:
    new = cst.Module([refresh(function(OLD), PROJECT.templates)]).code
    assert new == OLD.replace("if is_npu()", "if not torch.compiler.is_compiling() and is_npu()")


def test_an_empty_line_above_and_what_was_bound_stay() -> None:
    old = OLD.replace("    if is_npu", "\n    if is_npu").replace("noise", "self.noise")
    new = cst.Module([refresh(function(old), PROJECT.templates)]).code
    assert "\n\n    if not torch.compiler" in new
    assert "self.noise.clamp_(max=1.0 - 2.0**-32)" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if is_npu():", "if is_cuda():"),
        ("2.0**-32", "2.0**-31"),
        ("clamp_(max=1.0 - 2.0**-32)\n", "clamp_(max=1.0 - 2.0**-32)\n        own_step()\n"),
        ("if is_npu():", "if not torch.compiler.is_compiling() and is_npu():"),
    ],
)
def test_anything_else_is_left_alone(old: str, new: str) -> None:
    assert OLD.count(old) == 1
    node = function(OLD.replace(old, new))
    assert refresh(node, PROJECT.templates) is node
