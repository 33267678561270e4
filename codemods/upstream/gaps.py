"""List the gaps of SGLang's own adaptation to the NPU: where it does not keep the promise.

A gap is seen in the structure of a tree's code by the seam that owns the place. The releases say
which unpatched ones have it.
"""

from __future__ import annotations

from dataclasses import dataclass

NATIVE = "0.5.13"
"""The first release with an adaptation of its own (pull request 21197)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A named way in which an unpatched release breaks the promise.

    Attributes:
        since: the first release that has it.
        until: the last one; None if the newest release still has it.
        meaning: what a request or a user sees of it, in one sentence.
        remedy: what closes it, or what to do, in one sentence.
    """

    name: str
    seam: str
    since: str
    until: str | None
    meaning: str
    remedy: str

    @property
    def text(self) -> str:
        """Return the whole explanation."""
        return f"{self.meaning} {self.remedy}"


DEEPSEEK_REFUSED = Gap(
    "deepseek_refused",
    "radix_cache",
    NATIVE,
    "0.5.16",
    "The server refuses to start a DeepSeek model with --attention-backend ascend in deterministic "
    "mode, although prefill on ascend reads the radix cache as it must.",
    'apply adds "ascend" to the list that refuses it, as 0.5.17 does.',
)
ALIAS_NOT_REBOUND = Gap(
    "alias_not_rebound",
    "batch_invariant",
    NATIVE,
    "0.5.20",
    "Fused attention called as torch_npu.npu_fused_infer_attention_score still runs the kernel "
    "whose results depend on the other requests in the batch.",
    "apply hands over to npu_ops, which replaces the operator under both of its names.",
)
WORKSPACE_NOT_REBOUND = Gap(
    "workspace_not_rebound",
    "batch_invariant",
    NATIVE,
    "0.5.20",
    "The workspace of fused attention is measured for the kernel that was replaced, so that it may "
    "be too small for the one that runs.",
    "apply hands over to npu_ops, which replaces the measuring operator too.",
)
FUSED_ATTENTION_V2 = Gap(
    "fused_attention_v2_not_replaced",
    "batch_invariant",
    NATIVE,
    None,
    "Layers with a sliding window or attention sinks, and from 0.5.14 on prefill of models with a "
    "head size other than 128, 192 or 256, run through npu_fused_infer_attention_score_v2, whose "
    "results may depend on the other requests.",
    "Nothing closes it, since Ascend's extension has no batch-invariant counterpart: use a model "
    "with one of those head sizes, and heed the warning at launch, which is about your model.",
)
REBINDING_NOT_UNDONE = Gap(
    "rebinding_not_undone",
    "batch_invariant",
    NATIVE,
    None,
    "After batch-invariant mode is left, operators of the NPU stay replaced for the rest of the "
    "process.",
    "apply hands over to npu_ops, which restores every original operator.",
)
ADDMM_NOT_REGISTERED = Gap(
    "addmm_not_registered",
    "batch_invariant",
    NATIVE,
    None,
    "Linear layers with a bias run through a kernel whose results depend on the other requests.",
    "apply hands over to npu_ops, which registers a batch-invariant addmm.",
)
BMM_NOT_REGISTERED = Gap(
    "bmm_not_registered",
    "batch_invariant",
    NATIVE,
    None,
    "Batched matrix multiplications run through a kernel whose results depend on the other "
    "requests.",
    "apply hands over to npu_ops, which registers a batch-invariant bmm.",
)
MEAN_OF_ALL_NOT_REPLACED = Gap(
    "mean_of_all_not_replaced",
    "batch_invariant",
    NATIVE,
    None,
    "A mean over a whole tensor runs through a kernel that nothing makes batch-invariant.",
    "apply hands over to npu_ops, which registers the mean without axes too.",
)
SCOPED_MODE_NOT_RESTORED = Gap(
    "scoped_mode_not_restored",
    "batch_invariant",
    NATIVE,
    None,
    "An exception inside `with set_batch_invariant_mode()` leaves the mode on, and one nested in "
    "an enabled mode breaks the outer one.",
    "apply makes the context manager restore the mode that was there before.",
)
EXTENSION_NOT_CHECKED = Gap(
    "extension_not_checked",
    "batch_invariant",
    NATIVE,
    None,
    "Without Ascend's batch-invariant extension the mode is marked as enabled before it fails, "
    "and a second attempt silently does nothing.",
    "apply hands over to npu_ops, which first says what is missing and how it is installed.",
)
MIN_P_TYPE_ERROR = Gap(
    "min_p_type_error",
    "sampler",
    NATIVE,
    None,
    "A request with min-p raises TypeError on the ascend sampling backend.",
    "apply corrects the multiplication that raises.",
)
NEIGHBOUR_DEPENDENT_DRAW = Gap(
    "neighbour_dependent_draw",
    "sampler",
    NATIVE,
    None,
    "Another request's top-k, top-p or min-p changes the tokens of a request with a seed.",
    "apply inserts code that samples each request as if it were alone.",
)
GUMBEL_UPPER_BOUND = Gap(
    "gumbel_upper_bound",
    "sampler",
    NATIVE,
    "0.5.17",
    "The largest hash gives infinite noise, so that for about one in four billion hashes a token "
    "that was filtered out may be returned.",
    "apply bounds the noise on an NPU, as 0.5.18 does on every device.",
)
TOP_P_DTYPE = Gap(
    "top_p_dtype",
    "sampler",
    NATIVE,
    "0.5.22",
    "The fused operator for top-k and top-p gets top-p in float32 beside logits in another type, "
    "which it refuses or reads wrongly.",
    "apply converts top-p to the type of the logits, as 0.5.23 does.",
)
OUT_OVERLOAD_LOST = Gap(
    "out_overload_lost",
    "npu_ops",
    NATIVE,
    "0.5.20",
    "Fused attention is replaced by a plain function, so that callers of its overloads such as "
    ".out fail.",
    "apply hands over to npu_ops, whose replacement keeps the overloads.",
)
MEAN_DTYPE = Gap(
    "mean_dtype",
    "npu_ops",
    NATIVE,
    None,
    "A mean over several axes returns float32 where the model computes in another type.",
    "apply hands over to npu_ops, whose mean has the type and shape of PyTorch's.",
)
ADD_RMS_NORM_SIGNATURE = Gap(
    "add_rms_norm_signature",
    "npu_ops",
    NATIVE,
    None,
    "The replacement of npu_add_rms_norm names its parameters differently and leaves out one "
    "result, so that a caller that relies on either fails.",
    "apply hands over to npu_ops, whose replacement has the operator's own signature.",
)
LAUNCH_GUARDS_MISSING = Gap(
    "launch_guards_missing",
    "launch_guards",
    NATIVE,
    None,
    "Graph capture, collectives and environment variables that break determinism are neither "
    "changed nor reported when the server starts.",
    "apply adds the checks at launch.",
)
PENALTIES_COUNTED_WRONGLY = Gap(
    "penalties_counted_wrongly",
    "penalties",
    NATIVE,
    None,
    "With the overlap scheduler, another request's prefill makes a request's penalties leave out "
    "one token and count another one twice, which changes its tokens.",
    "apply counts each token once, right before the next one is sampled.",
)

PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS = Gap(
    "pytorch_draw_depends_on_neighbours",
    "seeded_sampling",
    NATIVE,
    None,
    "On the sampling backend pytorch, the default, another request's top-k or top-p changes the "
    "tokens of a request with a seed, and another one's min-p makes the whole batch raise "
    "AssertionError.",
    "apply hands seeded draws over to seeded_sampling, which draws each request as if it were "
    "alone.",
)

GAPS = {gap.name: gap for gap in globals().values() if isinstance(gap, Gap)}
"""Every gap by its name, in the order of the seams."""
