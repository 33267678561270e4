"""Name what the names that the series searches for have in common.

What is searched for together costs less, and only the files with a part of a name can hold the
whole. A name without a part here is found all the same, by a search of its own.
"""

from __future__ import annotations

STEMS = (
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
)
