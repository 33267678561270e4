"""Sample tokens by seed and position on the Ascend path of the sampler.

**Why**: the path uses the global random generator, so that a request's tokens depend on whatever
was sampled before. With upstream's own sampling by seed they still depend on the other requests of
the batch, whose parameters choose one path for the whole batch; on one of the paths they also
depend on the token's rank. Here every path samples in vocabulary order, and each row takes the path
that it would take alone.

**Where**: `srt/layers/sampler.py`, from `Sampler.forward` down to `multinomial_with_seed` (from
0.5.9). From 0.5.5.post3 to 0.5.8.post1 that function does not follow the distribution, and the
backend "pytorch" stays forced (seeded_sampling). From 0.5.13 on the same code is inserted before
upstream's; only the multiplication that raises for min-p is rewritten.

**Upstream**: pull request 21197 (0.5.13) passes seed and position on, with gaps.

**Ends when**: upstream's sampled tokens do not depend on the other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from sgl_npu_patch.codemods.upstream import draws, filtered_paths, mode, sampling
from sgl_npu_patch.codemods.upstream import gaps as known
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.draws import SEED
from sgl_npu_patch.codemods.upstream.filtered_paths import INTERFACE, POSITIONS
from sgl_npu_patch.codemods.upstream.symbols import (
    DRAW,
    FORWARD_ASCEND,
    SAMPLE_ASCEND,
    SAMPLE_FROM_LOGITS,
    Symbol,
)
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import find, match_any
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.cst.signature import (
    append_arguments,
    append_parameters,
    has_parameters,
    passes,
)
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target, Withheld
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import Spot, View
from sgl_npu_patch.templates import render


def premise(view: View) -> NotNeeded | Withheld | None:
    """Do nothing without an Ascend path, or where the seeded draw is not faithful."""
    path = sampling.ascend_path(view)
    if path == "none":
        return NotNeeded(
            'the sampler knows the backends "flashinfer" and "pytorch" only',
            (sampling.backends_sampled(view),),
        )
    draw = DRAW.find(view)
    if path == "probabilities" and sampling.takes_probabilities(draw):
        return Withheld(
            f"{DRAW} of this release is reproducible but does not follow the model's "
            "distribution (its noise is not independent across tokens), and the ascend backend "
            'samples from unnormalised values; "pytorch" stays forced, whose seeded draw the seam '
            "seeded_sampling repairs",
            (draw.site,),
        )
    if path == "probabilities" or sampling.takes_probabilities(draw):
        raise AnchorError(
            sought=f"the pair of Ascend path and {DRAW}",
            expected="sampling from logits together with a draw that takes logarithms",
            found=f"sampling from {path}, and a draw that takes "
            + ("probabilities" if path == "logits" else "logarithms"),
            where=(draw.site,),
            action="take both from one release",
        )
    return None


def targets(view: View) -> Sequence[Target]:
    """Find the functions on the way from ``forward`` to the draw.

    Upstream's own form (0.5.13 ..) hands everything down: ours is inserted before its draws.
    """
    if is_upstream(view) is not None:
        return _drawing(view)
    caller = FORWARD_ASCEND.find_caller(view)
    forward_ascend = FORWARD_ASCEND.find(view)
    end = _drawing(view)
    _require_caller(view, SAMPLE_FROM_LOGITS, forward_ascend)
    _require_names(view, forward_ascend, "torch")
    return (Target(caller, pass_from_forward), Target(forward_ascend, thread_forward), *end)


def _drawing(view: View) -> Sequence[Target]:
    """Find the functions that draw, at the end of the way."""
    from_logits = SAMPLE_FROM_LOGITS.find(view)
    filtered = SAMPLE_ASCEND.find(view)
    draw = DRAW.find(view)
    name = draw.block.name
    _require_caller(view, SAMPLE_ASCEND, from_logits)
    _require_names(view, from_logits, "torch", name)
    _require_names(view, filtered, "torch", "Optional", name)
    _require_names(view, draw, "is_npu")
    mode.require_torch_npu(view, filtered)
    return (
        Target(from_logits, partial(draw_simple, draw=name)),
        Target(
            filtered,
            partial(
                draw_filtered, draw=name, rows=filtered_paths.rows_of_batch_flag(view, filtered)
            ),
        ),
        Target(draw, fit_for_npu),
    )


def _require_caller(view: View, called: Symbol, expected: Spot) -> None:
    caller = called.find_caller(view)
    if caller.site != expected.site:
        raise AnchorError(
            sought=f"the caller of {called}",
            expected=expected.block.qualname,
            found=caller.block.qualname,
            where=(caller.site, expected.site),
            action=f"call it from {expected.block.qualname} itself",
        )


def _require_names(view: View, spot: Spot, *names: str) -> None:
    source = view.source(spot.path)
    for name in names:
        if not source.binds(name):
            raise AnchorError(
                sought=f"{name} in {spot.path.name}",
                expected="an import or a definition of it, under no condition",
                found="none",
                where=(spot.site,),
                action=f"import {name} at module level",
            )


def is_upstream(view: View) -> Site | None:
    """Report whether every function has upstream's own form, ours being another."""
    if not SAMPLE_ASCEND.is_in(view):
        return None
    filtered = SAMPLE_ASCEND.find(view)
    native = (
        _draws_from_logs(filtered.function)
        and _draws_from_logs(SAMPLE_FROM_LOGITS.find(view).function)
        and _threads_positions(FORWARD_ASCEND.find(view).function)
        and passes(FORWARD_ASCEND.find_caller(view).function, FORWARD_ASCEND.names, POSITIONS)
        and sampling.not_compiled(DRAW.find(view).function)
    )
    return filtered.site if native else None


def pass_from_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Pass the positions that ``forward`` already has."""
    assert isinstance(node, cst.FunctionDef)
    if not has_parameters(node, POSITIONS):
        raise AnchorError(
            sought=f"the caller of {FORWARD_ASCEND}",
            expected=f"a function with a parameter {POSITIONS}",
            found=excerpt(read.code(node.params)),
            action=f"give it the parameter {POSITIONS}",
        )
    return append_arguments(node, FORWARD_ASCEND.names, POSITIONS)


def thread_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Take the positions and hand them on."""
    assert isinstance(node, cst.FunctionDef)
    node = append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return append_arguments(node, SAMPLE_FROM_LOGITS.names, POSITIONS)


def draw_simple(node: cst.CSTNode, draw: str) -> cst.CSTNode:
    """Draw by seed where nothing is filtered, and hand seed and positions on otherwise.

    Args:
        draw: the name of the function that draws by seed.
    """
    assert isinstance(node, cst.FunctionDef)
    step = draws.unseeded_draw(node, node)
    logits, info = _logits_and_info(node)
    probs = draws.drawn_from(step)
    draws.require_softmax(probs, logits, draws.without_draw(node, step))
    draws.require_plain_return(step, node.body.body, step.above[1:])
    text = render("draw_simple", info=info, logits=logits, probs=probs, draw=draw)
    node = edit.place(node, step, text, mark=draw)
    filtered, found = read.only(
        find([f"$tokens = {name}(...)" for name in SAMPLE_ASCEND.names], node),
        draws.unclear(f"the call of {SAMPLE_ASCEND}", "one statement that assigns its result"),
    )
    (call,) = read.calls(filtered.node, *SAMPLE_ASCEND.names)
    tokens, top_ks = read.dotted(found["tokens"]), _argument(call, 1)
    text = render("greedy_row", info=info, tokens=tokens, logits=logits, top_ks=top_ks)
    node = edit.place(node, filtered, text, mark="argmax", after=True)
    node = append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return append_arguments(node, SAMPLE_ASCEND.names, f"{info}.{SEED}", POSITIONS)


def _logits_and_info(node: cst.FunctionDef) -> tuple[str, str]:
    names = [p.name.value for p in read.parameters(node)]
    if len(names) < 3 or names[0] != "self":
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected="self, the logits and what else sampling needs",
            found=", ".join(names),
            action=as_released("the parameters"),
        )
    return names[1], names[2]


def draw_filtered(node: cst.CSTNode, draw: str, rows: str = "") -> cst.CSTNode:
    """Draw by seed on the fused and on the sorted path, and repair min-p on the fused one.

    Args:
        draw: the name of the function that draws by seed.
        rows: the test of a row for the fused path, if the batch's flag is passed instead.
    """
    assert isinstance(node, cst.FunctionDef)
    names = tuple(p.name.value for p in read.parameters(node))
    flag = filtered_paths.batch_flag(node)
    if not flag and names not in (INTERFACE, (*INTERFACE, SEED), (*INTERFACE, SEED, POSITIONS)):
        raise AnchorError(
            sought=f"the parameters of {SAMPLE_ASCEND}",
            expected=", ".join(INTERFACE),
            found=", ".join(names),
            action=as_released("the parameters"),
        )
    paths = filtered_paths.filtered_paths(node, flag, rows)
    node = _draw_alone(node, paths, flag, draw)
    cast = render("top_p_type", **_INTERFACE)
    node = edit.place(node, paths.fused_call, cast, blank=paths.fused_call.index > 0)
    node = _repair_min_p(node, "min_ps")
    if flag:
        return node
    return append_parameters(node, f"{SEED}: Optional[torch.Tensor]", f"{POSITIONS}: torch.Tensor")


_INTERFACE = {name: name for name in INTERFACE}


def _draw_alone(
    node: cst.FunctionDef, paths: filtered_paths.Paths, flag: str, draw: str
) -> cst.FunctionDef:
    """Draw each row as if it were alone: by its own path, in vocabulary order."""
    text = render("one_path_a_row", fusable=paths.fusable, function=node.name.value, **_INTERFACE)
    node = edit.place(node, paths.first, text, mark=node.name.value)
    if flag:
        node = edit.place(node, paths.choice, filtered_paths.count_of_rows(flag))
    edits: tuple[tuple[Step, str, str, dict[str, str]], ...] = (
        (paths.fused_draw, "draw_fused", draw, {"probs": paths.fused}),
        (paths.total, "keep_tail", "", {}),
        (
            paths.sorted_draw,
            "draw_sorted",
            draw,
            {"probs": paths.probs, "index": paths.index, "sorted": paths.sorted},
        ),
    )
    for step, template, mark, own in edits:
        text = render(template, draw=draw, **_INTERFACE, **own)
        node = edit.place(node, step, text, mark=mark, blank=step.index > 0)
    return node


def fit_for_npu(node: cst.CSTNode) -> cst.CSTNode:
    """Run the draw uncompiled on an NPU, and keep its noise finite there."""
    assert isinstance(node, cst.FunctionDef)
    if not sampling.not_compiled(node):
        for decorator in node.decorators:
            name = sampling.decorator_name(decorator)
            if name == "torch.compile":
                node = edit.swap(node, decorator.decorator, _disabled(decorator.decorator))
            elif name not in sampling.HARMLESS:
                raise AnchorError(
                    sought=f"the decorators of {DRAW}",
                    expected="torch.compile, or none that could compile it",
                    found=excerpt(read.code(decorator.decorator)),
                    action="take the decorator off, or apply torch.compile in its place",
                )
    if not sampling.is_clamped(node):
        step, found = read.only(
            sampling.uniform_draws(node),
            draws.unclear("the uniform draw", "one division by uint32's maximum"),
        )
        if not any(name in read.code(step.node) for name in ("float64", "double")):
            raise AnchorError(
                sought="the uniform draw",
                expected="one in float64, in which the largest value below 1 can be told from 1",
                found=excerpt(read.code(step.node)),
                action="draw in float64",
            )
        text = render("clamp", uniform=read.dotted(found["uniform"]))
        node = edit.place(node, step, text, after=True)
    return node


def _threads_positions(node: cst.FunctionDef) -> bool:
    return has_parameters(node, POSITIONS) and passes(node, SAMPLE_FROM_LOGITS.names, POSITIONS)


def _draws_from_logs(node: cst.FunctionDef) -> bool:
    """Report whether a function draws by seed from the log of probabilities, as upstream's does."""
    drawn = bool(read.calls(node, *DRAW.names)) and sampling.takes_log(node)
    return has_parameters(node, POSITIONS) and drawn


def _disabled(decorator: cst.BaseExpression) -> cst.Call:
    call = decorator if isinstance(decorator, cst.Call) else cst.Call(func=decorator)
    given = read.keyword(call, "disable")
    if given is not None:
        raise AnchorError(
            sought=f"the decorator of {DRAW}",
            expected="torch.compile without disable=, or with disable=is_npu()",
            found=read.code(call),
            action="leave disable= out",
        )
    extra = cst.parse_expression("_(disable=is_npu())")
    assert isinstance(extra, cst.Call)
    if call.args and isinstance(call.args[-1].comma, cst.MaybeSentinel):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        call = call.with_changes(args=[*call.args[:-1], call.args[-1].with_changes(comma=comma)])
    return call.with_changes(args=[*call.args, *extra.args])


def _argument(call: cst.Call, index: int) -> str:
    if len(call.args) <= index or call.args[index].keyword is not None:
        raise AnchorError(
            sought=f"the arguments of {SAMPLE_ASCEND}",
            expected=", ".join(INTERFACE),
            found=excerpt(read.code(call)),
            action="pass them by position, in that order",
        )
    return read.code(call.args[index].value)


_MAXIMUM = ("$_.max($_, ...)", "$_.max(dim=$_)", "$_.max(dim=$_, keepdim=$_)")


def _repair_min_p(node: cst.FunctionDef, min_ps: str) -> cst.FunctionDef:
    """Take the values of ``max(dim=...)``, which gives a pair that cannot be multiplied."""
    for product in read.find_all(node, cst.BinaryOperation):
        for pair, other in ((product.left, product.right), (product.right, product.left)):
            scaled = any(name.value == min_ps for name in read.find_all(other, cst.Name))
            if scaled and match_any(_MAXIMUM, pair) is not None:
                values = cst.Attribute(value=pair, attr=cst.Name("values"))
                return _repair_min_p(edit.swap(node, pair, values), min_ps)
    return node


def gaps(view: View) -> tuple[str, ...]:
    """Name what upstream's form leaves open; see seams.md for each."""
    filtered, draw = SAMPLE_ASCEND.find(view), DRAW.find(view)
    function = filtered.function
    found = []
    if _repair_min_p(function, "min_ps") is not function:
        found.append(known.MIN_P_TYPE_ERROR.name)
    if read.calls(function, "gather") and read.calls(function, *DRAW.names):
        found.append(known.NEIGHBOUR_DEPENDENT_DRAW.name)
    if not sampling.is_clamped(draw.function):
        found.append(known.GUMBEL_UPPER_BOUND.name)
    if not any(read.dotted(call.func) == "top_ps.to" for call in read.calls(function, "to")):
        found.append(known.TOP_P_DTYPE.name)
    return tuple(found)


SEAM = Seam(targets=targets, premise=premise, gaps=gaps)
