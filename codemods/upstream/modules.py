"""Name the modules that define what is executed of SGLang, for each symbol where it usually is."""

from __future__ import annotations

from collections.abc import Mapping

from sgl_npu_patch.codemods.upstream import symbols

_SERVER_ARGS = "sglang.srt.server_args"
_CHOICES = "sglang.srt.arg_groups.choices"
_MODE = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
_SAMPLER = "sglang.srt.layers.sampler"

USUAL: Mapping[str, tuple[str, ...]] = {
    "ServerArgs": (_SERVER_ARGS,),
    symbols.HANDLERS[0]: (_SERVER_ARGS,),
    symbols.HANDLERS[1]: ("sglang.srt.arg_groups.attention_hook",),
    # From 0.5.20 on the lists have a module of their own.
    "DETERMINISTIC_ATTENTION_BACKEND_CHOICES": (_CHOICES, _SERVER_ARGS),
    "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND": (_CHOICES, _SERVER_ARGS),
    "register_post_process": ("sglang.srt.arg_groups.overrides",),
    "register_model_override": ("sglang.srt.arg_groups.model_override_base",),
    "CudaGraphConfig": ("sglang.srt.model_executor.cuda_graph_config",),
    "envs": ("sglang.srt.environ",),
    "get_dispatch_device_backend": ("sglang.srt.utils.common", "sglang.srt.utils"),
    symbols.ENABLE: (_MODE,),
    "disable_batch_invariant_mode": (_MODE,),
    "set_batch_invariant_mode": (_MODE,),
    "Sampler": (_SAMPLER,),
    symbols.FORWARD_ASCEND: (_SAMPLER,),
    symbols.SAMPLE_FROM_LOGITS: (_SAMPLER,),
    symbols.SAMPLE_ASCEND: (_SAMPLER,),
    symbols.SAMPLE_ASCEND_PROBS: (_SAMPLER,),
    symbols.DRAW: (_SAMPLER,),
    "OutputLogprobProcessor": ("sglang.srt.layers.logprob_processor",),
    "UnquantizedLinearMethod": ("sglang.srt.layers.quantization.unquant",),
    "RMSNorm": ("sglang.srt.layers.layernorm",),
    # From 0.5.6.post1 on, and before.
    "AscendAttnBackend": (
        "sglang.srt.hardware_backend.npu.attention.ascend_backend",
        "sglang.srt.layers.attention.ascend_backend",
    ),
}
"""Symbols with the modules that define them in the releases, the newest first. A fork may have
moved any of them."""
