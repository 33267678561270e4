"""Run a tree's layers on one row alone and in batches, on an NPU whose kernels see the batch.

Unreplaced reductions of the simulated device differ in their last bits from one batch size to
another; replaced ones compute row by row. So a row that comes out of every batch with the bits that
it has alone went through replaced reductions only, or through reductions whose last bits do not
reach the result. Each check says which reductions ran.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from sgl_npu_patch.codemods.upstream.gaps import PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS
from sgl_npu_patch.simulator.sglang import VENDORED
from sgl_npu_patch.verify.behaviour import Subject, check
from sgl_npu_patch.verify.behaviour.layers import cases, reading
from sgl_npu_patch.verify.behaviour.layers.world import Layer, Ran, World, try_out, world_of
from sgl_npu_patch.verify.findings import NotApplicable

_MODE = "batch_invariant"
_VENDORED = "/".join(VENDORED.split(".")[1:]) + "/"


def _promised(subject: Subject, layer: Callable[[World], Layer]) -> str:
    """Demand that a row has the same bits in every batch; say what ran."""
    world = world_of(subject.package, subject.torch_npu)
    ran = _executed(world, layer)
    if ran.differs is not None:
        raise ran.differs
    if ran.unknown:
        raise NotApplicable(f"not proven: {', '.join(ran.unknown)} may add up; {ran}")
    return str(ran)


def _not_promised(subject: Subject, layer: Callable[[World], Layer], why: str) -> None:
    """Say what ran of a layer that the series does not make batch-invariant."""
    world = world_of(subject.package, subject.torch_npu)
    ran = _executed(world, layer, f"not promised: {why}; ")
    if not ran.native:
        raise NotApplicable(f"not promised: {why}, though no native reduction ran; {ran}")
    named = ", ".join(ran.native)
    raise NotApplicable(f"not promised: {why} runs {named}, which nothing replaces; {ran}")


def _executed(world: World, layer: Callable[[World], Layer], why: str = "") -> Ran:
    """Try a layer out, or raise NotApplicable where it needs more than is simulated.

    What the replacements raise is the tree's own failure.
    """
    try:
        return try_out(world, layer(world))
    except NotApplicable:
        raise
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if any(_VENDORED in file.replace(os.sep, "/") for file in files):
            raise
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise NotApplicable(f"{why}it cannot be executed here: {message}") from error


@check(_MODE)
def linear(subject: Subject) -> str:
    """A row of a linear layer without bias has the same bits in every batch."""
    return _promised(subject, lambda world: cases.linear(world, bias=False))


@check(_MODE, gap="addmm_not_registered")
def linear_with_bias(subject: Subject) -> str:
    """A row of a linear layer with bias has the same bits in every batch."""
    return _promised(subject, lambda world: cases.linear(world, bias=True))


@check(_MODE)
def rms_norm(subject: Subject) -> str:
    """A row of RMSNorm has the same bits in every batch."""
    return _promised(subject, lambda world: cases.norm(world, "RMSNorm", residual=False))


@check(_MODE)
def rms_norm_residual(subject: Subject) -> str:
    """A row of RMSNorm with a residual has the same bits in every batch."""
    return _promised(subject, lambda world: cases.norm(world, "RMSNorm", residual=True))


@check(_MODE)
def gemma_rms_norm(subject: Subject) -> None:
    """A row of GemmaRMSNorm has the same bits in every batch."""
    _not_promised(
        subject, lambda world: cases.norm(world, "GemmaRMSNorm", residual=False), "GemmaRMSNorm"
    )


@check(_MODE)
def gemma_rms_norm_residual(subject: Subject) -> None:
    """A row of GemmaRMSNorm with a residual has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: cases.norm(world, "GemmaRMSNorm", residual=True),
        "GemmaRMSNorm with a residual",
    )


@check(_MODE)
def attention_decode_fia(subject: Subject) -> str:
    """With ASCEND_USE_FIA, a request's decode step has the same bits in every batch."""
    return _promised(subject, lambda world: cases.attention(world, decode=True, fia=True))


@check(_MODE, gap="alias_not_rebound")
def attention_prefill_fia(subject: Subject) -> str:
    """With ASCEND_USE_FIA, a request's prefill has the same bits in every batch."""
    return _promised(subject, lambda world: cases.attention(world, decode=False, fia=True))


@check(_MODE)
def attention_decode_no_fia(subject: Subject) -> None:
    """Without ASCEND_USE_FIA, a request's decode step has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: cases.attention(world, decode=True, fia=False),
        "decode without ASCEND_USE_FIA",
    )


@check(_MODE)
def attention_prefill_no_fia(subject: Subject) -> None:
    """Without ASCEND_USE_FIA, a request's prefill has the same bits in every batch."""
    _not_promised(
        subject,
        lambda world: cases.attention(world, decode=False, fia=False),
        "prefill without ASCEND_USE_FIA",
    )


@check(_MODE)
def attention_mla_fia(subject: Subject) -> None:
    """With MLA and ASCEND_USE_FIA, a request's attention has the same bits in every batch."""
    reading.only_read(
        world_of(subject.package, subject.torch_npu),
        "MLA with ASCEND_USE_FIA",
        {"self.use_mla": True, "self.use_fia": True},
    )


@check(_MODE)
def attention_mla_no_fia(subject: Subject) -> None:
    """With MLA but no ASCEND_USE_FIA, a request's attention has the same bits in every batch."""
    reading.only_read(
        world_of(subject.package, subject.torch_npu),
        "MLA without ASCEND_USE_FIA",
        {"self.use_mla": True, "self.use_fia": False},
    )


@check(_MODE)
def attention_second_version(subject: Subject) -> None:
    """Where the tree calls npu_fused_infer_attention_score_v2, rows have the same bits."""
    reading.only_read(
        world_of(subject.package, subject.torch_npu),
        "npu_fused_infer_attention_score_v2",
        {},
        "_attention_score_v2",
    )


@check("sampler")
def sampler_simple(subject: Subject) -> str:
    """A row that nothing filters is sampled with the same bits in every batch."""
    return _promised(subject, lambda world: cases.sampler(subject, world, {}))


@check("sampler")
def sampler_fused(subject: Subject) -> str:
    """A row that npu_top_k_top_p filters is sampled with the same bits in every batch."""
    return _promised(
        subject, lambda world: cases.sampler(subject, world, {"top_k": 20, "top_p": 0.8})
    )


@check("sampler")
def sampler_sorted(subject: Subject) -> str:
    """A row filtered by sorted probabilities is sampled with the same bits in every batch."""
    return _promised(subject, lambda world: cases.sampler(subject, world, {"top_p": 0.8}))


@check("seeded_sampling", gap=PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS.name)
def sampler_pytorch(subject: Subject) -> str:
    """On the backend pytorch, a row that nothing filters draws the same in every batch."""
    return _promised(subject, lambda world: cases.sampler(subject, world, {}, "pytorch"))


@check("seeded_sampling", gap=PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS.name)
def sampler_pytorch_filtered(subject: Subject) -> str:
    """On the backend pytorch, a filtered row draws the same in every batch."""
    filters = {"top_k": 20, "top_p": 0.8, "min_p": 0.01}
    return _promised(subject, lambda world: cases.sampler(subject, world, filters, "pytorch"))
