"""Check how the paths call what they are made of."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.symbols import ASCEND
from sgl_npu_patch.simulator.modules import find
from sgl_npu_patch.simulator.torch_npu import top_k_top_p
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.sampler.trial import (
    Trial,
    compiled,
    demand_alone,
    half,
    multinomial_calls,
    sampler_check,
    shown_call,
)
from sgl_npu_patch.verify.behaviour.sampler_machine import (
    NEIGHBOURS,
    OTHERS,
    PLAIN,
    SUBJECTS,
    sampling_info,
    with_seeds,
)


@sampler_check(gap="min_p_type_error", backends=(ASCEND,))
def min_p_works_on_the_fused_path(trial: Trial) -> None:
    """Min-p beside top-k, which takes the fused operator, filters and does not raise."""
    on = trial.machine()
    batch = [
        replace(other, top_k=20, min_p=0.1 * index, seed=None) for index, other in enumerate(OTHERS)
    ]
    seeded = [replace(each, seed=3) for each in batch]
    on.fused_calls = 0
    try:
        on.draw(seeded)
        with multinomial_calls() as seen:
            on.draw(batch)
    except TypeError as error:
        raise Failed(
            f"a min-p request raises TypeError: {error}",
            expected="probabilities below min_p times the largest are dropped",
            found=str(error),
            code=shown_call(seeded[1]),
        ) from error
    if on.fused_calls == 0:
        return
    info = sampling_info(batch)
    logits = torch.stack([request.logits for request in batch])
    probabilities = top_k_top_p(logits, info.top_ps, info.top_ks).softmax(dim=-1)
    least = probabilities.amax(dim=-1, keepdim=True) * info.min_ps.unsqueeze(1)
    expected = probabilities.masked_fill(probabilities < least, 0.0)
    weights = seen[0][0].double()
    share = weights / weights.sum(-1, keepdim=True)
    expected = expected.double() / expected.double().sum(-1, keepdim=True)
    if not torch.allclose(share, expected, rtol=1e-5, atol=1e-9):
        raise Failed(
            "min-p keeps other tokens than those of min_p times the largest probability",
            expected=f"{(expected > 0).sum(-1).tolist()} tokens a row",
            found=f"{(share > 0).sum(-1).tolist()} tokens a row",
            code=shown_call(batch[1]),
        )


@sampler_check(gap="top_p_dtype", backends=(ASCEND,))
def top_p_has_the_type_of_logits(trial: Trial) -> None:
    """The fused operator gets top-p in the type of the logits, which it requires."""
    on = trial.machine()
    for name in ("top-k", "top-k-and-top-p"):
        seeded = [half(each) for each in with_seeds(SUBJECTS[name], 30)]
        try:
            expected = [on.draw([each])[0] for each in seeded]
        except RuntimeError as error:
            if "npu_top_k_top_p takes p" not in str(error):
                raise
            raise Failed(
                f"bfloat16 logits fail: {error}",
                expected="p of type torch.bfloat16",
                found=str(error),
                code=shown_call(seeded[0]),
            ) from error
        others = [half(each) for each in NEIGHBOURS["fused-both"]]
        demand_alone(trial, seeded, "fused-both", others, expected)


@sampler_check()
def not_compiled_on_an_npu(trial: Trial) -> None:
    """Nothing that samples by seed goes through torch.compile on an NPU."""
    on = trial.machine()
    for name in ("plain", "top-k", "top-p"):
        on.draw(with_seeds(SUBJECTS[name], 3))
    if found := compiled(on):
        raise Failed(
            "a function that samples by seed is compiled on the NPU",
            expected="torch.compile(..., disable=True)",
            found=", ".join(found),
            code=shown_call(PLAIN),
        )


_METHODS = ("forward", *symbols.FORWARD_ASCEND.names, *symbols.SAMPLE_FROM_LOGITS.names)
_FUNCTIONS = (symbols.SAMPLE_ASCEND, symbols.DRAW)


@sampler_check(backends=(ASCEND,))
def forgotten_positions_fail_loudly(trial: Trial) -> None:
    """No function on the way has a default for positions: a caller that forgets them fails."""
    on = trial.machine()
    with on.execution:
        tree = on.execution.package
        functions = {name: getattr(type(on.sampler), name, None) for name in _METHODS}
        functions |= {f.name: on.execution.value(f) for f in _FUNCTIONS if find(tree, f)}
    found = 0
    for name, function in functions.items():
        if function is None:
            continue
        signature = inspect.signature(getattr(function, "function", function))
        taken = signature.parameters
        for parameter in ("positions", "sampling_seed"):
            if parameter in taken and taken[parameter].default is not inspect.Parameter.empty:
                raise Failed(
                    f"{name} has a default for {parameter}: a fork's override that forgets it "
                    "draws at the same one for ever",
                    expected=parameter,
                    found=str(taken[parameter]),
                    code=f"def {name}{signature}",
                )
        found += "positions" in taken
    assert found, "no function of the Ascend path takes positions"
