"""Name the symbols of SGLang, each once, with the releases that have each."""

from __future__ import annotations

ASCEND = "ascend"
HANDLERS = ("_handle_deterministic_inference", "handle_deterministic_inference")
"""A method of ServerArgs up to 0.5.18, a module-level function from 0.5.19 on."""
ENABLED = "enable_deterministic_inference"
ENABLE = "enable_batch_invariant_mode"
FORWARD_ASCEND = "_forward_ascend_backend"
SAMPLE_FROM_LOGITS = "_sample_from_logits"
SAMPLE_ASCEND = "top_k_top_p_min_p_sampling_from_logits_ascend"
SAMPLE_ASCEND_PROBS = "top_k_top_p_min_p_sampling_from_probs_ascend"
DRAW = "multinomial_with_seed"
FUSED_ATTENTION = "npu_fused_infer_attention_score"
OURS = "npu_ops"
"""The vendored module of the operators, and the mark of what hands over to it."""
UPSTREAM_OPS = "npu_batch_invariant_ops"
"""The module of upstream's own adaptation, in the folder where ours go."""
