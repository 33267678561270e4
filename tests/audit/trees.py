"""Make small trees for `audit`."""

from __future__ import annotations

from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.audit.scan import Call
from tests.helpers import ROOT, MemoryTree

MODE = "srt/batch_invariant_ops/batch_invariant_ops.py"
NORM = "srt/layers/layernorm.py"
NPU = "srt/hardware_backend/npu/ops.py"
ENABLE = """\
def enable_batch_invariant_mode(enable_bmm=True):
    if not _is_npu:
        lib.impl("aten::bmm", bmm, "CUDA")
    else:
        lib.impl("aten::mm", mm, "NPU")
        lib.impl("aten::matmul", matmul, "NPU")
        torch_npu.npu_add_rms_norm = add_rms_norm
"""


def memory(files: dict[str, str]) -> MemoryTree:
    """Give a tree with a native mode, and these files below the package."""
    every = {MODE: ENABLE, "srt/launch.py": "args.enable_deterministic_inference\n", **files}
    return MemoryTree({ROOT / name: text.encode() for name, text in every.items()})


def calls(files: dict[str, str]) -> tuple[Call, ...]:
    """Audit such a tree."""
    return audit(memory(files)).calls


def found(source: str, path: str = NPU) -> list[str]:
    """Name the operators that are findings in one file, in the order of lines."""
    return [c.name for c in calls({path: f"import torch\n{source}\n"}) if not c.covered]
