"""Return the dispatch key "NPU" from the function that names the accelerator.

**Why**: `enable_batch_invariant_mode` registers operators under this key; on an NPU the function
raises.

**Where**: `get_dispatch_device_backend` in `srt/utils/common.py` (from 0.5.11). Older releases
write "CUDA" into every registration, which the seam batch_invariant deals with.

**Upstream**: pull request 21197 (0.5.13) has the same branch.

**Ends when**: no release before 0.5.13 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream import devices, mode
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import DISPATCH, ENABLE
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import match_any
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import View


def premise(view: View) -> NotNeeded | None:
    """Do nothing where the registrations name "CUDA" themselves."""
    if DISPATCH.is_in(view):
        return None
    enable = ENABLE.find(view)
    keys = [
        read.string(call.args[2].value)
        for call in read.calls(enable.node, "impl")
        if len(call.args) > 2
    ]
    if keys and set(keys) <= {"CUDA", "NPU"}:
        return NotNeeded(
            f'{ENABLE} registers under a literal "CUDA"; there is no {DISPATCH}',
            (enable.site,),
        )
    raise AnchorError(
        sought=str(DISPATCH),
        expected='the function, or registrations under a literal "CUDA"',
        found="neither",
        where=(enable.site,),
        action=as_released("the dispatch key"),
    )


def targets(view: View) -> Sequence[Target]:
    """Find the function."""
    spot = DISPATCH.find(view)
    devices.require_is_npu(view, spot)
    return (Target(spot, add_npu),)


def knows_npu(node: cst.CSTNode) -> bool:
    """Report whether some branch under ``is_npu()`` gives "NPU"."""
    return any(
        _asks_npu(branch)
        and isinstance(branch.body, cst.IndentedBlock)
        and any(_gives(statement) == "NPU" for statement in branch.body.body)
        for branch in read.find_all(node, cst.If)
    )


def add_npu(node: cst.CSTNode) -> cst.CSTNode:
    """Put an ``elif is_npu()`` in front of the ``else`` that raises."""
    if knows_npu(node):
        return node
    branches = list(read.find_all(node, cst.If))
    if any(_asks_npu(branch) for branch in branches):
        raise AnchorError(
            sought=f"the branch of {DISPATCH} for an NPU",
            expected='none, or one that gives "NPU"',
            found="one that gives something else",
            action='make that branch give "NPU"',
        )
    flat = _before_raise(node)
    if flat is not None:
        return flat
    found = [
        branch
        for branch in branches
        if isinstance(branch.orelse, cst.Else) and list(read.find_all(branch.orelse, cst.Raise))
    ]
    last = read.only(
        found,
        lambda count: AnchorError(
            sought=f"the else of {DISPATCH} that raises",
            expected="exactly one",
            found=str(count),
            action='begin the function with `if is_npu(): return "NPU"`',
        ),
    )
    given = read.assigned(last.body.body[0]) if len(last.body.body) == 1 else None
    if given is None or read.string(given[1]) not in ("CUDA", "XPU"):
        raise AnchorError(
            sought=f"the branches of {DISPATCH}",
            expected='an assignment of "CUDA" or "XPU" in each',
            found=excerpt(read.code(last.body)),
            action='begin the function with `if is_npu(): return "NPU"`',
        )
    body = edit.block(f'{given[0]} = "NPU"\n')
    branch = cst.If(
        test=cst.parse_expression("is_npu()"),
        body=cst.IndentedBlock(body),
        orelse=last.orelse,
    )
    return edit.swap(node, last, last.with_changes(orelse=branch))


def _before_raise(node: cst.CSTNode) -> cst.CSTNode | None:
    """Put an ``if is_npu()`` in front of a final ``raise`` that follows an ``if`` which returns."""
    assert isinstance(node, cst.FunctionDef)
    statements: list[cst.CSTNode] = list(node.body.body)
    last, above = statements[-1], statements[-2] if len(statements) > 1 else None
    found = match_any(_RETURNING, above)
    if read.small(last, cst.Raise) is None or found is None:
        return None
    if read.string(found["key"]) not in ("CUDA", "XPU"):
        return None
    text = 'if is_npu():\n    return "NPU"\n'
    if "name" in found:
        name = read.code(found["name"])
        text = f'if is_npu():\n    {name} = "NPU"\n    return {name}\n'
    return edit.insert(node, last, before=edit.block(text))


_RETURNING = (
    "if $test:\n    return $key\n",
    "if $test:\n    $name = $key\n    return $name\n",
)


def _asks_npu(branch: cst.If) -> bool:
    """Report whether a branch tests for an NPU, by the function or by a module's constant."""
    return any(name.value.strip("_") == "is_npu" for name in read.find_all(branch.test, cst.Name))


def _gives(statement: cst.CSTNode) -> str | None:
    found = match_any(("return $key", "$_ = $key"), statement)
    return read.string(found["key"]) if found else None


SEAM = Seam(targets=targets, premise=premise, adapted=mode.is_adapted)
