"""Rewrite the simulator's schemas from the real wheels: `python -m tests.simulator.refresh`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sgl_npu_patch.verify import torch_npu_wheel

KEPT = Path(__file__).parents[2] / "src" / "sgl_npu_patch" / "simulator" / "schemas.json"
VERSIONS = ("2.8.0.post2", "2.10.0", "2.13.0", "2.14.0")
OPERATORS = (
    "_npu_flash_attention",
    "_npu_flash_attention_qlens",
    "_npu_fused_infer_attention_score_get_max_workspace",
    "_npu_fused_infer_attention_score_infer_output",
    "_npu_fused_infer_attention_score_v2_get_max_workspace",
    "_npu_paged_attention",
    "_npu_paged_attention_mla",
    "_npu_reshape_and_cache",
    "npu_add_rms_norm",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score.out",
    "npu_fused_infer_attention_score_v2",
    "npu_fused_infer_attention_score_v2.out",
    "npu_format_cast",
    "npu_gemma_rms_norm",
    "npu_grouped_matmul",
    "npu_interleave_rope",
    "npu_kv_rmsnorm_rope_cache",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_init_routing_v2",
    "npu_mrope",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scatter_nd_update_",
    "npu_swiglu",
    "npu_top_k_top_p",
    "npu_transpose_batchmatmul",
)
"""What the simulation defines, or a check may add to it."""


def observed(version: str) -> dict[str, Any]:
    """Read what is kept of one version out of its wheel; what it lacks is left out."""
    found = torch_npu_wheel.read(version)
    schemas = {name: found.schemas[name] for name in OPERATORS if name in found.schemas}
    names = {name.partition(".")[0] for name in found.schemas} - {*found.atb}
    return {
        "graph_handlers": found.graph_handlers,
        "operators": sorted(names),
        "schemas": schemas,
    }


def main() -> None:
    """Replace the file."""
    text = json.dumps({version: observed(version) for version in VERSIONS}, indent=1) + "\n"
    KEPT.write_text(text, encoding="utf-8", newline="\n")
    sys.stderr.write(f"{KEPT}: {len(VERSIONS)} versions; now review it with git diff\n")


if __name__ == "__main__":
    main()
