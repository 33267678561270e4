"""Name what the checks execute of SGLang besides what the series hangs on."""

from __future__ import annotations

from sgl_npu_patch.codemods.upstream.symbols import (
    ARGUMENTS,
    FIRST,
    MODE,
    OVERRIDES,
    SAMPLING,
    Form,
    Symbol,
    assignment,
    function,
)


def _class(*forms: Form) -> Symbol:
    return Symbol("class", forms)


SERVER_ARGS = _class(Form("ServerArgs", ARGUMENTS))
POST_PROCESS = function(Form("register_post_process", OVERRIDES, "0.5.15"))
MODEL_OVERRIDE = function(
    Form("register_model_override", OVERRIDES, "0.5.15", "0.5.18"),
    Form("register_model_override", "srt/arg_groups/model_override_base.py", "0.5.19"),
)
ENVIRONMENT = assignment(Form("envs", "srt/environ.py"))
GRAPH_CONFIG = _class(Form("CudaGraphConfig", "srt/model_executor/cuda_graph_config.py", "0.5.14"))
IS_ENABLED = function(Form("is_batch_invariant_mode_enabled", MODE))
COUNT_PENALTIES = function(
    Form("cumulate_penalty_output_tokens", "srt/managers/schedule_batch.py", "0.5.14")
)
BATCH_INFO = _class(Form("SamplingBatchInfo", "srt/sampling/sampling_batch_info.py"))
SAMPLER = _class(Form("Sampler", SAMPLING))
LOGPROBS = _class(Form("OutputLogprobProcessor", "srt/layers/logprob_processor.py", "0.5.16"))
ATTENTION = _class(
    Form("AscendAttnBackend", "srt/layers/attention/ascend_backend.py", FIRST, "0.5.6"),
    Form(
        "AscendAttnBackend", "srt/hardware_backend/npu/attention/ascend_backend.py", "0.5.6.post1"
    ),
)
LINEAR = _class(Form("UnquantizedLinearMethod", "srt/layers/quantization/unquant.py"))
NORM = _class(Form("RMSNorm", "srt/layers/layernorm.py"))

EXECUTED = {name: value for name, value in globals().items() if isinstance(value, Symbol)}
"""Every symbol of this module by the name that it has here."""
