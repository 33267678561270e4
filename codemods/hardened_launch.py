"""Make explicit at launch what determinism depends on, on releases with upstream's adaptation.

**Why**: as `launch_guards` says. From 0.5.14 on the flags of graphs are folded into one
configuration before the handler runs, so that setting a flag there changes nothing: the module
switches off the configuration itself. It says too that nothing replaces
`npu_fused_infer_attention_score_v2`, where the tree calls it and the ascend attention may run.

**Where**: the end of the deterministic branch of `_handle_deterministic_inference`, as in
`launch_guards`. Arguments are changed as the handler itself does it: assigned, or declared where
they are sealed (0.5.19 ..).

**Upstream**: has none of it (to 0.5.23).

**Ends when**: upstream sets these itself.
"""

from __future__ import annotations

from sgl_npu_patch.codemods import hardened_operators, launch_guards
from sgl_npu_patch.engine.seam import Seam

SEAM = Seam(
    targets=launch_guards.targets,
    premise=hardened_operators.premise,
    vendors=("launch_guards",),
)
