"""Describe SGLang to the engine: where it stands, what is searched for, what is added to it."""

from __future__ import annotations

from pathlib import PurePosixPath

from sgl_npu_patch.engine.project import Project

PROJECT = Project(
    name="SGLang",
    package="sglang",
    core="srt",
    layouts=("python/sglang", "sglang", "."),
    marker="enable_deterministic_inference",
    too_old=(
        "this SGLang has no deterministic inference: nothing in {package} mentions "
        "enable_deterministic_inference, which came with 0.5.3rc2; there is nothing to patch, "
        "take a newer SGLang"
    ),
    vendor_folder=PurePosixPath("srt/hardware_backend/npu/batch_invariant_ops"),
    vendored=("npu_ops", "launch_guards"),
    modules="sgl_npu_patch.npu_ops",
    templates="sgl_npu_patch.templates",
    header=(
        "# Written by sgl-npu-patch {version}: do not edit, `sgl-npu-patch apply` refreshes it."
    ),
    stems=(
        b"_deterministic_",
        b"DETERMINISTIC_ATTENTION_BACKEND",
        b"_batch_invariant",
        b"_sample_from_logits",
        b"top_k_top_p_min_p_sampling_from_",
        b"multinomial_with_seed",
        b"forward_extend",
        b"_forward_ascend_backend",
        b"get_dispatch_device_backend",
        b"npu_fused_infer_attention_score_v2",
    ),
    wheel_suffix="npu.deterministic",
)
"""What `apply` patches; upstream keeps no `__init__.py` in the vendor folder."""
