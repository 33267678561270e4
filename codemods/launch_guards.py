"""Make explicit at launch what determinism on an NPU silently depends on.

**Why**: a graph captured by an older torch_npu replays a replaced operator with stale lengths and
gives wrong tokens; collectives are deterministic only when told so; without ASCEND_USE_FIA prefill
and decode run through kernels that nothing makes batch-invariant.

**Where**: the end of the deterministic branch of `_handle_deterministic_inference`, which runs
before worker processes start; it calls the vendored module launch_guards.

**Upstream**: has none of it; native releases (0.5.13 ..) get the gap `launch_guards_missing`.

**Ends when**: upstream sets these itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods import _places
from sgl_npu_patch.codemods import sampler as _sampler
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.templates import render


def is_upstream(view: View) -> Site | None:
    """Tell whether the tree carries the whole of upstream's adaptation."""
    if _places.native_enable(view) is None or _sampler.is_upstream(view) is None:
        return None
    spot = _places.handler(view)
    return None if guards(spot.node) else spot.site


def targets(view: View) -> Sequence[Target]:
    """Find the handler."""
    spot = _places.handler(view)
    imports = _places.import_is_npu(view, spot)
    return (Target(spot, guards, lambda node: add_guards(node, imports)),)


def guards(node: cst.CSTNode) -> bool:
    """Tell whether the handler calls the vendored module."""
    return any(
        nodes.dotted(call.func) == "launch_guards.apply" for call in nodes.calls(node, "apply")
    )


def add_guards(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Append the call to the deterministic branch."""
    assert isinstance(node, cst.FunctionDef)
    branch = _places.enabled_branch(node)
    if list(nodes.find_all(branch, cst.Return)):
        raise AnchorError(
            sought=f"the end of the deterministic branch of {node.name.value}",
            expected="one that every call reaches",
            found="a return inside the branch",
            action="call launch_guards.apply by hand on every way out",
        )
    args = nodes.parameters(node)
    text = imports + render("launch_guards", args=args[0].name.value)
    last = branch.body.body[-1]
    return nodes.insert(node, last, after=nodes.block(text, blank=True))


SEAM = Seam(
    targets=targets,
    is_upstream=is_upstream,
    gaps=lambda view: ("launch_guards_missing",),
    vendors=("launch_guards",),
)
