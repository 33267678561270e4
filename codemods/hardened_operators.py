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

from sgl_npu_patch.codemods import _places, batch_invariant
from sgl_npu_patch.engine.seam import NotNeeded, Seam
from sgl_npu_patch.engine.view import View


def premise(view: View) -> NotNeeded | None:
    """Leave trees alone that have no branch of upstream's."""
    enable = view.find_function(_places.ENABLE)
    if _places.has_upstream_branch(view, enable):
        return None
    return NotNeeded(_places.CONTAINED, (enable.site,))


SEAM = Seam(
    targets=lambda view: batch_invariant.hand_over(view, lambda node: None),
    premise=premise,
    left_open=batch_invariant.left_open,
    vendors=("npu_ops",),
)
