"""Copy the module with the batch-invariant operators into the tree.

**Why**: the wrappers around Ascend's extension need more than an inserted line. In a file of their
own they can be read, checked and replaced as one.

**Where**: `srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py`, created with its folders.

**Upstream**: pull request 21197 (0.5.13) has `npu_batch_invariant_ops.py` in the same folder, with
gaps. This file is never changed.

**Ends when**: upstream's module has none of these gaps.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import libcst as cst

from sgl_npu_patch.codemods.upstream import gaps as known
from sgl_npu_patch.codemods.upstream import mode, symbols
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.seam import Seam
from sgl_npu_patch.engine.view import View

FUSED_WRAPPER = "npu_fused_infer_attention_score_batch_invariant"
NORM_WRAPPER = "npu_add_rms_norm_batch_invariant"


def gaps(view: View) -> tuple[str, ...]:
    """Name what upstream's module leaves open.

    A Python function in the place of the operator has lost its overloads (.. 0.5.20); a mean over
    several axes is a float32 sum, whatever aten would return; the norm names its parameters
    otherwise than the operator, needs them all, and leaves out the reciprocal deviations.
    """
    path: PurePosixPath = view.vendor_folder / f"{symbols.UPSTREAM_OPS}.py"
    source = view.overlay.source(path)
    assert source is not None, "native_enable insists on it"
    found = []
    if source.named(FUSED_WRAPPER, "function"):
        found.append(known.OUT_OVERLOAD_LOST.name)
    mean = view.find_function("npu_mean_batch_invariant")
    if any(
        read.last_name(read.keyword(call, "dtype")) == "float32"
        for call in read.calls(mean.node, "sum")
        if isinstance(call, cst.Call)
    ):
        found.append(known.MEAN_DTYPE.name)
    norm = source.named(NORM_WRAPPER, "function")
    if norm and "epsilon" not in [
        p.name.value for p in read.parameters(view.find_function(NORM_WRAPPER).function)
    ]:
        found.append(known.ADD_RMS_NORM_SIGNATURE.name)
    return tuple(found)


SEAM = Seam(is_upstream=mode.native_enable, gaps=gaps, vendors=("npu_ops",))
