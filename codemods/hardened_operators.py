"""Make upstream's own batch-invariant mode replace and give back what npu_ops does.

**Why**: upstream's branch for the NPU leaves linear layers with bias, `bmm`, means over everything
and one of two names of fused attention to kernels that depend on the batch, and leaving the mode
leaves operators replaced.

**Where**: the three functions of `batch_invariant`, on trees that have upstream's branch: the same
hand-over to npu_ops is inserted before it, so that it is not reached any more. Nothing of it is
rewritten, and neither is `npu_batch_invariant_ops.py`.

**Upstream**: pull request 21197 (0.5.13) and its successors; open in 0.5.23.

**Stays open**: `fused_attention_v2_not_replaced`. Ascend's extension has no batch-invariant
counterpart of `npu_fused_infer_attention_score_v2`.

**Ends when**: upstream's own branch closes the gaps that are named for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from sgl_npu_patch.codemods import _places, batch_invariant
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.nodes import Step
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target
from sgl_npu_patch.engine.view import View

REGISTERED = ("mm", "matmul", "addmm", "bmm", "mean", "mean.dim", "_log_softmax")
REBOUND = (
    _places.FUSED_ATTENTION,
    f"_{_places.FUSED_ATTENTION}_get_max_workspace",
    "npu_add_rms_norm",
)
"""What npu_ops registers under aten, and what it rebinds in torch.ops.npu and torch_npu."""
_NAMESPACES = ("torch.ops.npu", "torch_npu")


def premise(view: View) -> NotNeeded | None:
    """Leave trees alone that have no branch of upstream's.

    Raises:
        AnchorError: the branch cannot work as it is.
    """
    if _places.native_branch(view) is not None:
        return None
    return NotNeeded(_places.CONTAINED, (view.find_function(_places.ENABLE).site,))


def targets(view: View) -> Sequence[Target]:
    """Find the three functions that change the mode."""
    return batch_invariant.hand_over(view, require_replaced)


def require_replaced(enable: cst.FunctionDef, anchor: Step) -> None:
    """Insist that npu_ops does all that the branch does which it puts out of force."""
    for step in _for_npu(enable):
        top = step.node if len(step.above) == 1 else step.above[1][0]
        if any(top is statement for statement in anchor.block[: anchor.index + 1]):
            raise AnchorError(
                sought=f"upstream's branch for the NPU in {enable.name.value}",
                expected="one behind the flag's check and the dispatch key",
                found=f"before them: {nodes.code(step.node)[:80]}",
                action="move the branch behind them, or leave hardened_operators out",
            )
        if not _replaces(step.node):
            raise AnchorError(
                sought=f"upstream's branch for the NPU in {enable.name.value}",
                expected="imports, and replacements of operators that npu_ops replaces too",
                found=nodes.code(step.node)[:80],
                action="take this statement out of the branch, or leave hardened_operators out",
            )


def _for_npu(enable: cst.FunctionDef) -> Iterator[Step]:
    """Yield the statements that name the NPU, or that a test for one leads to."""
    for step in nodes.steps(enable):
        branched = any(
            isinstance(outer, cst.If) and inside in _sides(outer.test)
            for outer, inside in step.above
        )
        # What an `if` holds has steps of its own.
        if not isinstance(step.node, cst.If) and (branched or batch_invariant.on_npu(step.node)):
            yield step


def _sides(test: cst.BaseExpression) -> tuple[bool, ...]:
    """Tell which blocks of an ``if`` run on an NPU, its body or what follows ``else``."""
    if not batch_invariant.on_npu(test):
        return ()
    negated = isinstance(test, cst.UnaryOperation)
    plain = test.expression if isinstance(test, cst.UnaryOperation) else test
    return (not negated,) if isinstance(plain, cst.Name | cst.Call) else (True, False)


def _replaces(node: cst.CSTNode) -> bool:
    """Tell whether a statement only imports, returns, or replaces what npu_ops replaces."""
    returned = nodes.small(node, cst.Return)
    if returned is not None:
        return returned.value is None
    if nodes.small(node, cst.ImportFrom) or nodes.small(node, cst.Import):
        return True
    call = nodes.statement_call(node)
    if call is not None and nodes.last_name(call.func) == "impl" and call.args:
        operator = nodes.string(call.args[0].value) or ""
        return operator.removeprefix("aten::") in REGISTERED
    pair = nodes.assigned(node)
    owner, _, name = pair[0].rpartition(".") if pair is not None else ("", "", "")
    return owner in _NAMESPACES and name in REBOUND


SEAM = Seam(
    targets=targets,
    premise=premise,
    left_open=batch_invariant.left_open,
    vendors=("npu_ops",),
)
