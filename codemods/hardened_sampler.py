"""Make upstream's draws on the Ascend path independent of the neighbours.

**Why**: upstream chooses the path for the whole batch, draws by rank on one of them, cuts the tail
of a request without top-p there, and raises for min-p beside the fused operator. From 0.5.21 on a
flag chooses the path that still counts neighbours which have left the batch.

**Where**: the functions of `sampler` that draw, on trees that have upstream's own draws: the same
draws are inserted before these, so that they are not reached any more. Nothing but the product that
raises is rewritten.

**Upstream**: pull request 21197 (0.5.13) and its successors; open in 0.5.23. The upper bound of
the noise is upstream's since 0.5.18, the type of top-p since 0.5.23.

**Ends when**: upstream's draw is independent of the neighbours.
"""

from __future__ import annotations

from sgl_npu_patch.codemods import _places, sampler
from sgl_npu_patch.engine.seam import NotNeeded, Seam
from sgl_npu_patch.engine.view import View


def premise(view: View) -> NotNeeded | None:
    """Leave trees alone whose Ascend path does not draw by seed on its own."""
    if sampler.is_upstream(view) is not None:
        return None
    path = _places.ascend_path(view)
    if path == "none":
        return NotNeeded(_places.CONTAINED, (_places.backends_sampled(view),))
    name = _places.SAMPLE_ASCEND if path == "logits" else _places.SAMPLE_ASCEND_PROBS
    return NotNeeded(_places.CONTAINED, (view.find_function(name).site,))


SEAM = Seam(targets=sampler.draws, premise=premise)
