"""Read the paths of the sampler; nothing here edits."""

from __future__ import annotations

from typing import Literal

import libcst as cst

from sgl_npu_patch.codemods.upstream import draws
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import (
    ASCEND,
    DRAW,
    FORWARD_ASCEND,
    SAMPLE_ASCEND,
    SAMPLE_ASCEND_PROBS,
)
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.cst.pattern import Found, find, match
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View


def ascend_path(view: View) -> Literal["none", "probabilities", "logits"]:
    """Return which Ascend path the sampler has: none (to 0.5.5.post2), from probabilities inside
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
    """Report whether ``multinomial_with_seed`` takes the log itself, from its own body.

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
    bound = {*map(read.dotted, read.targets(spot.node))}
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
    """Return the name of what is taken as it is, or in another floating type."""
    while isinstance(node, cst.Call) and read.last_name(node.func) in ("to", "double", "float"):
        node = node.func.value if isinstance(node.func, cst.Attribute) else node.func
    return read.dotted(node)


HARMLESS = ("torch.no_grad", "torch.inference_mode")
"""Decorators that compile nothing."""


def decorator_name(decorator: cst.Decorator) -> str:
    """Return the dotted name of a decorator, called or not."""
    node = decorator.decorator
    return read.dotted(node.func if isinstance(node, cst.Call) else node)


def not_compiled(node: cst.FunctionDef) -> bool:
    """Report whether no decorator of a function compiles it on an NPU."""
    return all(
        decorator_name(decorator) in HARMLESS
        or (
            decorator_name(decorator) == "torch.compile"
            and isinstance(decorator.decorator, cst.Call)
            and match("is_npu()", read.keyword(decorator.decorator, "disable")) is not None
        )
        for decorator in node.decorators
    )


def uniform_draws(node: cst.FunctionDef) -> list[tuple[Step, Found]]:
    """List the divisions that turn hashes into numbers below 1."""
    return [
        (step, found)
        for step, found in find(["$uniform = $_ / $largest"], node)
        if "uint32" in read.code(found["largest"]) and read.dotted(found["uniform"])
    ]


def is_clamped(node: cst.FunctionDef) -> bool:
    """Report whether the uniform draw is bounded just below 1, or its first logarithm below 0."""
    uniform = {read.dotted(found["uniform"]) for _, found in uniform_draws(node)}
    return any(
        draws.root(call) in uniform
        and (bound := read.number(read.keyword(call, "max"))) is not None
        and 0 < (0 if takes_log(call.func) else 1) - bound < _NARROW
        for call in read.calls(node, "clamp_", "clamp")
    )


_NARROW = 1e-6
"""A bound further away than this from the largest value would change what is drawn."""


def takes_log(node: cst.CSTNode) -> bool:
    """Report whether a logarithm is taken anywhere in a node."""
    return bool(read.calls(node, "log_", "log"))
