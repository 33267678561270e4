"""Find upstream's batch-invariant mode and its branch for the NPU; nothing here edits."""

from __future__ import annotations

import libcst as cst

from sgl_npu_patch.codemods.upstream.symbols import (
    ENABLE,
    OURS,
    UPSTREAM_OPS,
)
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View


def is_adapted(view: View) -> bool:
    """Report whether the tree has the module of upstream's own adaptation."""
    return view.overlay.read(view.vendor_folder / f"{UPSTREAM_OPS}.py") is not None


def native_enable(view: View) -> Site | None:
    """Find upstream's own NPU branch, if enabling the mode runs it.

    Not where our own hand-over stands before it.
    """
    if _hands_over(ENABLE.find(view)):
        return None
    spot = native_branch(view)
    return None if spot is None else spot.site


def native_branch(view: View) -> Spot | None:
    """Find the function with upstream's own NPU branch, whether or not the branch is reached.

    Raises:
        AnchorError: what the branch needs is missing, or would be imported on every device.
    """
    spot = ENABLE.find(view)
    modules = {
        read.last_name(imported.module) for imported in read.find_all(spot.node, cst.ImportFrom)
    }
    if UPSTREAM_OPS not in modules and not _imports_upstream_ops(view, spot):
        return None
    if not _hands_over(spot):
        require_upstream_ops(view, spot)
        require_torch_npu(view, spot)
    return spot


def _hands_over(enable: Spot) -> bool:
    return any(name.value == OURS for name in read.find_all(enable.node, cst.Name))


def _imports_upstream_ops(view: View, spot: Spot) -> bool:
    """Report whether a function registers what its module imports of upstream's own.

    Raises:
        AnchorError: the import would run on every device.
    """
    source = view.source(spot.path)
    if UPSTREAM_OPS not in source.text:
        return False
    registered = {
        name.value
        for call in read.calls(spot.node, "impl")
        for arg in call.args[1:2]
        for name in read.find_all(arg.value, cst.Name)
    }
    imports = [
        block
        for block in source.blocks
        if block.kind == "import" and block.name in registered and UPSTREAM_OPS in source.cut(block)
    ]
    if any(not block.guards for block in imports):
        raise AnchorError(
            sought=f"the import of {UPSTREAM_OPS}",
            expected="one inside the function or under a condition: it imports torch_npu",
            found="one that runs on every device",
            where=(Site(source.path, imports[0].line, UPSTREAM_OPS), spot.site),
            action=f"move the import into {spot.block.name}, or under if is_npu()",
        )
    return bool(imports)


def require_torch_npu(view: View, spot: Spot) -> None:
    """Insist that the name torch_npu, where a function uses it, is imported by somebody."""
    used = any(name.value == "torch_npu" for name in read.find_all(spot.node, cst.Name))
    own = any(
        read.dotted(alias.name) == "torch_npu"
        for statement in read.find_all(spot.node, cst.Import)
        for alias in statement.names
    )
    if used and not own and not view.source(spot.path).named("torch_npu", "import"):
        raise AnchorError(
            sought=f"torch_npu in {spot.path.name}",
            expected=f"an import of it, which {spot.block.name} uses",
            found="none",
            where=(spot.site,),
            action="import torch_npu under if is_npu()",
        )


def require_upstream_ops(view: View, spot: Spot) -> None:
    """Insist that the module which upstream's own branch imports is in the tree."""
    if not is_adapted(view):
        raise AnchorError(
            sought=f"{UPSTREAM_OPS}.py",
            expected=f"the module that {ENABLE} imports on an NPU",
            found="no such file in the package",
            where=(spot.site,),
            action="restore the file from upstream; this tool never writes it",
        )
