"""Check at launch what determinism on an NPU depends on.

**Why**: a graph captured by an older torch_npu replays a replaced operator with stale lengths and
gives wrong tokens; collectives are deterministic only if they are told to be; without
ASCEND_USE_FIA prefill and decode run kernels that nothing makes batch-invariant. From 0.5.14 on the
flags of graphs are folded into one configuration before, so that it must be changed itself.

**Where**: the end of the deterministic branch of `_handle_deterministic_inference`, which runs
before worker processes start. It calls the module launch_guards, which is copied into the tree.

**Upstream**: has none of it.

**Ends when**: upstream sets these itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream import devices, handler
from sgl_npu_patch.codemods.upstream.gaps import LAUNCH_GUARDS_MISSING
from sgl_npu_patch.codemods.upstream.handler import Branch
from sgl_npu_patch.codemods.upstream.symbols import DECLARE, HANDLER
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.templates import render

_CALLS = ("launch_guards.apply", "launch_guards.decide")


def targets(view: View) -> Sequence[Target]:
    """Find the handler."""
    spot = HANDLER.find(view)
    return (Target(spot, lambda node: add_guards(node, devices.import_is_npu(view, spot))),)


def add_guards(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Append the call to the deterministic branch."""
    assert isinstance(node, cst.FunctionDef)
    branch = handler.enabled_branch(node)
    text = imports + call_of(node, branch)
    wanted = edit.block(text, blank=True)
    body = branch.body
    for start in range(len(body) - len(wanted) + 1):
        if all(map(read.alike, body[start : start + len(wanted)], wanted)):
            return node
    if any(list(read.find_all(statement, cst.Return)) for statement in body):
        raise AnchorError(
            sought=f"the end of the deterministic branch of {node.name.value}",
            expected="one that every call reaches",
            found="a return inside the branch",
            action="take the return out of the branch",
        )
    others = [
        call
        for name in _CALLS
        for call in read.calls(node, name.rpartition(".")[2])
        if "launch_guards" in read.code(node)
    ]
    if others:
        raise AnchorError(
            sought=f"the call of launch_guards in {node.name.value}",
            expected="none, or what this tool inserts in the deterministic branch",
            found=f"one in another place or written differently: {excerpt(read.code(others[0]))}",
            action="take that call out, and apply again",
        )
    return edit.insert(node, body[-1], after=wanted)


def call_of(node: cst.FunctionDef, branch: Branch) -> str:
    """Render the call in the form in which the handler itself changes arguments.

    Raises:
        AnchorError: it neither assigns them nor declares changes of one object.
    """
    forms = {
        (read.dotted(call.func), read.dotted(call.args[0].value))
        for statement in branch.body
        for call in read.calls(statement, *DECLARE.names)
        if call.args
    }
    assigns = branch.args in {p.name.value for p in read.parameters(node)}
    if assigns and not forms:
        return render("launch_guards", args=branch.args)
    if assigns or len(forms) != 1 or not all(map(all, forms)):
        found = sorted(f"{name}({of or 'an expression'}, ...)" for name, of in forms)
        raise AnchorError(
            sought=f"how {node.name.value} changes arguments",
            expected=f"a parameter to assign them to, or a view of one and {DECLARE} for it",
            found=", ".join([f"{branch.args} as a {'parameter' if assigns else 'view'}", *found]),
            action=f"assign all to a parameter, or declare all changes by {DECLARE}(NAME, ...)",
        )
    ((declare, record),) = forms
    return render("launch_guards_declared", args=branch.args, declare=declare, record=record)


SEAM = Seam(
    targets=targets,
    gaps=lambda view: (LAUNCH_GUARDS_MISSING.name,),
    vendors=("launch_guards",),
)
