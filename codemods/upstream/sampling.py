"""Read the paths of the sampler; nothing here edits."""

from __future__ import annotations

from typing import Literal

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import (
    ASCEND,
    DRAW,
    FORWARD_ASCEND,
    SAMPLE_ASCEND,
    SAMPLE_ASCEND_PROBS,
)
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View


def ascend_path(view: View) -> Literal["none", "probabilities", "logits"]:
    """Tell which Ascend path the sampler has: none (to 0.5.5.post2), from probabilities inside
    ``forward`` (0.5.5.post3 .. 0.5.8.post1) or from logits (0.5.9 ..)."""
    if FORWARD_ASCEND.is_in(view) or SAMPLE_ASCEND.is_in(view):
        return "logits"
    return "probabilities" if SAMPLE_ASCEND_PROBS.is_in(view) else "none"


def backends_sampled(view: View) -> Site:
    """Find the function that draws tokens by sampling backend and knows no "ascend".

    This is the positive evidence that a tree has no Ascend path to patch.
    """
    for path in (path for name in DRAW.names for path in view.overlay.mentioning(name)):
        source = view.source(path)
        for block in source.blocks:
            text = source.cut(block) if block.kind == "function" else ""
            known = {
                name
                for name in ("flashinfer", "pytorch", ASCEND)
                if f'"{name}"' in text or f"'{name}'" in text
            }
            if known == {"flashinfer", "pytorch"}:
                return Site(path, block.line, block.qualname)
    raise AnchorError(
        sought="the sampler's choice between sampling backends",
        expected='one function that compares with "flashinfer" and "pytorch", or an Ascend path',
        found="neither",
        action=as_released("the choice"),
    )


def takes_probabilities(spot: Spot) -> bool:
    """Tell whether ``multinomial_with_seed`` takes the log itself, from its own body.

    Raises:
        AnchorError: the body neither takes the log of its first parameter nor adds it as it is.
    """
    parameters = read.parameters(spot.function)
    first = parameters[0].name.value if parameters else ""
    logs = [*read.calls(spot.node, "log"), *read.calls(spot.node, "log_")]
    if any(_uses(call, first) for call in logs):
        return True
    added = [
        *(arg.value for call in read.calls(spot.node, "add_") for arg in call.args),
        *(
            side
            for operation in read.find_all(spot.node, cst.BinaryOperation)
            if isinstance(operation.operator, cst.Add)
            for side in (operation.left, operation.right)
        ),
    ]
    bound = {
        read.dotted(target.target)
        for statement in read.find_all(spot.node, cst.Assign)
        for target in statement.targets
    }
    if first not in bound and any(_retyped(value) == first for value in added):
        return False
    raise AnchorError(
        sought=f"what {DRAW} takes",
        expected=f"a body that takes the log of {first or 'its first parameter'} or adds it",
        found="neither, so whether it takes probabilities or logarithms cannot be told",
        where=(spot.site,),
        action=as_released("the body"),
    )


def _uses(node: cst.CSTNode, name: str) -> bool:
    return any(found.value == name for found in read.find_all(node, cst.Name))


def _retyped(node: cst.CSTNode) -> str:
    """Name what is taken as it is, or in another floating type."""
    while isinstance(node, cst.Call) and read.last_name(node.func) in ("to", "double", "float"):
        node = node.func.value if isinstance(node.func, cst.Attribute) else node.func
    return read.dotted(node)
