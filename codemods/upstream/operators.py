"""Name the operators of aten and torch_npu that the batch-invariant mode is about."""

from __future__ import annotations

FUSED_ATTENTION = "npu_fused_infer_attention_score"
FUSED_ATTENTION_V2 = f"{FUSED_ATTENTION}_v2"
"""Called from 0.5.13 on for some head sizes; Ascend's extension has no counterpart of it."""
MAX_WORKSPACE = f"_{FUSED_ATTENTION}_get_max_workspace"
ADD_RMS_NORM = "npu_add_rms_norm"
FUSED_FILTER = "npu_top_k_top_p"
"""The fused operator for top-k and top-p, which the sampler calls."""

NAMESPACES = ("torch.ops.npu", "torch_npu")
"""Where operators of the NPU are called as attributes; the second copies those of the first."""
REBOUND = (FUSED_ATTENTION, MAX_WORKSPACE, ADD_RMS_NORM)
"""What npu_ops replaces in both."""
REGISTERED = (
    "mm", "mm.out", "mm.dtype", "mm.dtype_out", "matmul", "matmul.out",
    "addmm", "addmm.out", "addmm.dtype", "addmm.dtype_out", "addmm_",
    "addbmm", "addbmm.out", "addbmm_", "mv", "mv.out", "addmv", "addmv.out", "addmv_",
    "bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out",
    "baddbmm", "baddbmm.out", "baddbmm.dtype", "baddbmm.dtype_out", "baddbmm_",
    "mean", "mean.dtype_out", "mean.dim", "mean.out", "_log_softmax", "_log_softmax.out",
    "_softmax", "_softmax.out", "sum", "sum.out", "sum.dim_IntList", "sum.IntList_out",
)  # fmt: skip
"""What npu_ops registers under aten, as far as the installed torch has it."""
