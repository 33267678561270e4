"""Draw tokens by seed and position on the Ascend path of the sampler.

**Why**: the path draws from the global generator, so that a request's tokens depend on whatever
was drawn before. Upstream's own seeded draw depends on the neighbours' parameters still: they
choose the path for the whole batch, and one path draws by rank. Here every path draws in
vocabulary order over the logits that it kept, and each row takes the path it would take alone.

**Where**: `srt/layers/sampler.py`, from `Sampler.forward` down to `multinomial_with_seed`
(0.5.9 ..). From 0.5.5.post3 to 0.5.8.post1 that function does not follow the distribution.

**Upstream**: pull request 21197 (0.5.13) has the parameters and a draw by seed on each path.

**Ends when**: upstream's draw is independent of the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import libcst as cst

from sgl_npu_patch.codemods import _places
from sgl_npu_patch.codemods._places import DRAW, FORWARD_ASCEND, SAMPLE_ASCEND, SAMPLE_FROM_LOGITS
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.nodes import Step
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target, Withheld
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.templates import render

POSITIONS = "positions"
SEED = "sampling_seed"
INTERFACE = ("logits", "top_ks", "top_ps", "min_ps", "need_min_p_sampling")
"""The parameters of the function for filtered sampling, before ours."""


def premise(view: View) -> NotNeeded | Withheld | None:
    """Do nothing without an Ascend path, or where the seeded draw is not faithful."""
    path = _places.ascend_path(view)
    if path == "none":
        return NotNeeded(
            'the sampler knows the backends "flashinfer" and "pytorch" only',
            (_places.backends_sampled(view),),
        )
    draw = view.find_function(DRAW)
    if path == "probabilities" and _places.takes_probabilities(draw):
        return Withheld(
            f"{DRAW} of this release is reproducible but does not follow the model's "
            "distribution (its noise is not independent across tokens), and the ascend backend "
            'samples from unnormalised values; "pytorch" stays forced, whose seeded draw is '
            "reproducible and has the same defect",
            (draw.site,),
        )
    if path == "probabilities" or _places.takes_probabilities(draw):
        raise AnchorError(
            sought=f"the pair of Ascend path and {DRAW}",
            expected="sampling from logits together with a draw that takes logarithms",
            found=f"sampling from {path}, and a draw that takes "
            + ("probabilities" if path == "logits" else "logarithms"),
            where=(draw.site,),
            action="bring both from one upstream release",
        )
    return None


def targets(view: View) -> Sequence[Target]:
    """Find the functions on the way from ``forward`` to the draw."""
    caller = view.find_caller(FORWARD_ASCEND)
    forward_ascend = view.find_function(FORWARD_ASCEND)
    from_logits = view.find_function(SAMPLE_FROM_LOGITS)
    filtered = view.find_function(SAMPLE_ASCEND)
    draw = view.find_function(DRAW)
    for name in (SAMPLE_FROM_LOGITS, SAMPLE_ASCEND):
        view.find_caller(name)
    source = view.source(draw.path)
    for name in ("is_npu", "Optional", "torch"):
        if not source.binds(name):
            raise AnchorError(
                sought=f"{name} in {draw.path.name}",
                expected="an import of it",
                found="none",
                where=(draw.site,),
                action=f"import {name} at module level",
            )
    return (
        Target(caller, partial(_passes, FORWARD_ASCEND), pass_from_forward),
        Target(forward_ascend, _threads_positions, thread_forward),
        Target(from_logits, _draws_simple, draw_simple),
        Target(filtered, _draws_filtered, draw_filtered),
        Target(draw, _fit_for_npu, fit_for_npu),
    )


def is_upstream(view: View) -> Site | None:
    """Tell whether every function has upstream's own form, ours being another."""
    if not view.has(SAMPLE_ASCEND, "function"):
        return None
    spots = [
        view.find_caller(FORWARD_ASCEND),
        view.find_function(FORWARD_ASCEND),
        view.find_function(SAMPLE_FROM_LOGITS),
        view.find_function(SAMPLE_ASCEND),
        view.find_function(DRAW),
    ]
    forward, forward_ascend, from_logits, filtered, draw = (spot.node for spot in spots)
    native = (
        _passes(FORWARD_ASCEND, forward)
        and _threads_positions(forward_ascend)
        and all(
            _has_parameters(node, POSITIONS) and nodes.calls(node, DRAW) and _takes_log(node)
            for node in (from_logits, filtered)
        )
        and _not_compiled(draw)
    )
    return spots[3].site if native else None


def pass_from_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Pass the positions that ``forward`` already has."""
    assert isinstance(node, cst.FunctionDef)
    if not _has_parameters(node, POSITIONS):
        raise AnchorError(
            sought=f"the caller of {FORWARD_ASCEND}",
            expected=f"a function with a parameter {POSITIONS}",
            found=nodes.code(node.params)[:80],
            action=f"hand {POSITIONS} down to it",
        )
    return _append_arguments(node, FORWARD_ASCEND, POSITIONS)


def thread_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Take the positions and hand them on."""
    assert isinstance(node, cst.FunctionDef)
    node = _append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return _append_arguments(node, SAMPLE_FROM_LOGITS, POSITIONS)


def draw_simple(node: cst.CSTNode) -> cst.CSTNode:
    """Draw by seed where nothing is filtered, and hand seed and positions on otherwise."""
    assert isinstance(node, cst.FunctionDef)
    step = _unseeded_draw(node, node)
    logits, info = (p.name.value for p in nodes.parameters(node)[1:3])
    probs = _probabilities(step, logits, node)
    text = render("draw_simple", info=info, logits=logits, probs=probs, draw=DRAW)
    node = nodes.insert(node, step.node, before=nodes.block(text))
    node = _append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return _append_arguments(node, SAMPLE_ASCEND, f"{info}.{SEED}", POSITIONS)


def draw_filtered(node: cst.CSTNode) -> cst.CSTNode:
    """Draw by seed on the fused and on the sorted path, and repair min-p on the fused one."""
    assert isinstance(node, cst.FunctionDef)
    names = tuple(p.name.value for p in nodes.parameters(node))
    if names != INTERFACE:
        raise AnchorError(
            sought=f"the parameters of {SAMPLE_ASCEND}",
            expected=", ".join(INTERFACE),
            found=", ".join(names),
            action="see what the new parameters mean and adapt this codemod",
        )
    logits, top_ks, top_ps, min_ps, need_min_p = names
    branch, fusable = _fused_branch(node)
    assert isinstance(branch.orelse, cst.Else)
    fused, sorted_ = _unseeded_draw(branch.body, node), _unseeded_draw(branch.orelse, node)
    values, index, probs = _sorting(branch.orelse)
    if _drawn_from(sorted_) != values:
        raise AnchorError(
            sought="the draw of the sorted path",
            expected=f"torch.multinomial({values}, ...)",
            found=nodes.code(sorted_.node)[:60],
            action="see what is drawn from now and adapt this codemod",
        )
    total = nodes.only(
        [s for s in nodes.steps(branch.orelse) if _assigns_call(s, "cumsum")],
        _unclear("the cumulative sum of the sorted path", "one assignment of torch.cumsum"),
    )
    edits: tuple[tuple[Step, str], ...] = (
        (
            fused,
            render("draw_fused", logits=logits, probs=_drawn_from(fused), draw=DRAW),
        ),
        (total, render("keep_tail", top_ps=top_ps)),
        (
            sorted_,
            render(
                "draw_sorted", logits=logits, probs=probs, index=index, sorted=values, draw=DRAW
            ),
        ),
    )
    for step, text in edits:
        node = nodes.insert(node, step.node, before=nodes.block(text, blank=True))
    node = _repair_min_p(node, min_ps)
    first = next(s for s in node.body.body if not _is_docstring(s))
    text = render(
        "one_path_a_row",
        fusable=fusable,
        function=SAMPLE_ASCEND,
        logits=logits,
        top_ks=top_ks,
        top_ps=top_ps,
        min_ps=min_ps,
        need_min_p=need_min_p,
    )
    node = nodes.insert(node, first, before=nodes.block(text))
    return _append_parameters(node, f"{SEED}: Optional[torch.Tensor]", f"{POSITIONS}: torch.Tensor")


def fit_for_npu(node: cst.CSTNode) -> cst.CSTNode:
    """Run the draw uncompiled on an NPU, and keep its noise finite there."""
    assert isinstance(node, cst.FunctionDef)
    if not _not_compiled(node):
        for decorator in node.decorators:
            if nodes.dotted(_called(decorator.decorator)) == "torch.compile":
                node = nodes.swap(node, decorator.decorator, _disabled(decorator.decorator))
    if not _clamps(node):
        found = [s for s in nodes.steps(node) if _is_uniform(s)]
        step = nodes.only(found, _unclear("the uniform draw", "one division by uint32's maximum"))
        pair = nodes.assigned(step.node)
        assert pair is not None
        text = render("clamp", uniform=pair[0])
        node = nodes.insert(node, step.node, after=nodes.block(text))
    return node


def _passes(name: str, node: cst.CSTNode) -> bool:
    return all(
        any(
            nodes.last_name(arg.value) == POSITIONS
            for arg in call.args
            if arg.keyword is None or arg.keyword.value == POSITIONS
        )
        for call in nodes.calls(node, name)
    )


def _has_parameters(node: cst.CSTNode, *names: str) -> bool:
    assert isinstance(node, cst.FunctionDef)
    return set(names) <= {p.name.value for p in nodes.parameters(node)}


def _threads_positions(node: cst.CSTNode) -> bool:
    return _has_parameters(node, POSITIONS) and _passes(SAMPLE_FROM_LOGITS, node)


def _draws_simple(node: cst.CSTNode) -> bool:
    return (
        _has_parameters(node, POSITIONS)
        and _passes(SAMPLE_ASCEND, node)
        and _draws_by_logits(node, 1)
    )


def _draws_filtered(node: cst.CSTNode) -> bool:
    return (
        _has_parameters(node, SEED, POSITIONS)
        and _draws_by_logits(node, 2)
        and len(nodes.calls(node, SAMPLE_ASCEND)) == 1
    )


def _draws_by_logits(node: cst.CSTNode, count: int) -> bool:
    """Tell whether there are so many seeded draws, each over masked logits and none over a log."""
    return len(nodes.calls(node, DRAW)) == count == len(nodes.calls(node, "masked_fill")) - (
        count - 1
    ) and not _takes_log(node)


def _takes_log(node: cst.CSTNode) -> bool:
    return bool(nodes.calls(node, "log_") or nodes.calls(node, "log"))


def _fit_for_npu(node: cst.CSTNode) -> bool:
    return _not_compiled(node) and _clamps(node)


def _not_compiled(node: cst.CSTNode) -> bool:
    assert isinstance(node, cst.FunctionDef)
    for decorator in node.decorators:
        call = decorator.decorator
        if nodes.dotted(_called(call)) == "torch.compile":
            off = nodes.keyword(call, "disable") if isinstance(call, cst.Call) else None
            if not isinstance(off, cst.Call) or nodes.last_name(off.func) != "is_npu":
                return False
    return True


def _clamps(node: cst.CSTNode) -> bool:
    return any(
        nodes.keyword(call, "max") is not None
        for name in ("clamp_", "clamp")
        for call in nodes.calls(node, name)
    )


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def _disabled(decorator: cst.BaseExpression) -> cst.Call:
    call = decorator if isinstance(decorator, cst.Call) else cst.Call(func=decorator)
    given = nodes.keyword(call, "disable")
    if given is not None:
        raise AnchorError(
            sought=f"the decorator of {DRAW}",
            expected="torch.compile without disable=, or with disable=is_npu()",
            found=nodes.code(call),
            action="make sure that the function is not compiled on an NPU",
        )
    extra = cst.parse_expression("_(disable=is_npu())")
    assert isinstance(extra, cst.Call)
    if call.args and isinstance(call.args[-1].comma, cst.MaybeSentinel):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        call = call.with_changes(args=[*call.args[:-1], call.args[-1].with_changes(comma=comma)])
    return call.with_changes(args=[*call.args, *extra.args])


def _is_uniform(step: Step) -> bool:
    pair = nodes.assigned(step.node)
    return (
        pair is not None
        and isinstance(pair[1], cst.BinaryOperation)
        and isinstance(pair[1].operator, cst.Divide)
        and "uint32" in nodes.code(pair[1].right)
    )


def _append_parameters(node: cst.FunctionDef, *sources: str) -> cst.FunctionDef:
    new = [source for source in sources if not _has_parameters(node, source.split(":")[0])]
    old = nodes.parameters(node)
    if not new:
        return node
    if old[-1].default is not None or node.params.kwonly_params or node.params.star_kwarg:
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected="positional ones without defaults",
            found=nodes.code(node.params)[:80],
            action=f"append {', '.join(new)} without a default by hand",
        )
    return nodes.append_parameter(node, *new)


def _append_arguments(node: cst.FunctionDef, name: str, *values: str) -> cst.FunctionDef:
    for step in nodes.steps(node):
        simple = isinstance(step.node, cst.SimpleStatementLine)
        for call in nodes.calls(step.node, name) if simple else ():
            if any(arg.star or arg.keyword for arg in call.args):
                raise AnchorError(
                    sought=f"the call of {name}",
                    expected="positional arguments only",
                    found=nodes.code(call)[:80],
                    action=f"append {', '.join(values)} by hand",
                )
            # A method's body is one level deeper than its own statements tell.
            method = nodes.parameters(node)[0].name.value == "self"
            indent = 4 * (len(step.above) + method + 1)
            width = indent + sum(len(nodes.code(arg)) + 1 for arg in call.args) - 2
            return nodes.swap(node, call, nodes.append_argument(call, *values, width=width))
    raise AssertionError(f"no call of {name} in {node.name.value}")


def _unclear(sought: str, expected: str) -> Callable[[int], AnchorError]:
    return lambda count: AnchorError(
        sought=sought,
        expected=expected,
        found=f"{count} of them",
        action="see how sampling changed upstream and adapt codemods/sampler.py",
    )


def _unseeded_draw(where: cst.CSTNode, function: cst.FunctionDef) -> Step:
    found = [
        step
        for step in nodes.steps(_bodied(where))
        if isinstance(step.node, cst.SimpleStatementLine)
        and any(
            nodes.dotted(c.func) == "torch.multinomial"
            for c in nodes.calls(step.node, "multinomial")
        )
    ]
    return nodes.only(
        found,
        _unclear(
            f"the unseeded draw in {function.name.value}", "one torch.multinomial on each path"
        ),
    )


def _bodied(node: cst.CSTNode) -> cst.CSTNode:
    return cst.Else(body=node) if isinstance(node, cst.IndentedBlock) else node


def _drawn_from(step: Step) -> str:
    call = nodes.calls(step.node, "multinomial")[0]
    return nodes.dotted(call.args[0].value)


def _probabilities(step: Step, logits: str, node: cst.FunctionDef) -> str:
    name = _drawn_from(step)
    for other in nodes.steps(node):
        if (
            _assigns_call(other, "softmax")
            and (pair := nodes.assigned(other.node)) is not None
            and pair[0] == name
            and any(nodes.dotted(arg) == logits for arg in nodes.find_all(pair[1], cst.Name))
        ):
            return name
    raise AnchorError(
        sought=f"what {node.name.value} draws from without a filter",
        expected=f"the softmax of {logits}",
        found=nodes.code(step.node)[:60],
        action="see how sampling changed upstream and adapt codemods/sampler.py",
    )


def _assigns_call(step: Step, name: str) -> bool:
    pair = nodes.assigned(step.node)
    return (
        pair is not None and isinstance(pair[1], cst.Call) and nodes.last_name(pair[1].func) == name
    )


def _fused_branch(node: cst.FunctionDef) -> tuple[cst.If, str]:
    """Find the choice between fused and sorted path and the test of a row inside it."""
    found = [
        step.node
        for step in nodes.steps(node)
        if isinstance(step.node, cst.If)
        and nodes.calls(step.node.test, "hasattr")
        and isinstance(step.node.orelse, cst.Else)
    ]
    branch = nodes.only(
        found,
        _unclear("the choice of the fused path", "one if hasattr(torch_npu, ...) with an else"),
    )
    whole = [c for c in nodes.calls(branch.test, "all") if nodes.dotted(c.func) == "torch.all"]
    call = nodes.only(whole, _unclear("the test of the rows", "one torch.all(...) in that if"))
    return branch, nodes.code(call.args[0].value)


def _sorting(orelse: cst.Else) -> tuple[str, str, str]:
    """Name the sorted values, their indices and what was sorted."""
    for step in nodes.steps(orelse):
        plain = nodes.small(step.node, cst.Assign)
        if plain is None or not isinstance(plain.value, cst.Call):
            continue
        target, function = plain.targets[0].target, plain.value.func
        if (
            isinstance(target, cst.Tuple)
            and len(target.elements) == 2
            and isinstance(function, cst.Attribute)
            and function.attr.value == "sort"
        ):
            values, index = (nodes.dotted(element.value) for element in target.elements)
            return values, index, nodes.dotted(function.value)
    raise _unclear("the sort of the sorted path", "values, index = probs.sort(...)")(0)


def _repair_min_p(node: cst.FunctionDef, min_ps: str) -> cst.FunctionDef:
    """Take the values of ``max(dim=...)``, which gives a pair that cannot be multiplied."""
    for product in nodes.find_all(node, cst.BinaryOperation):
        left = product.left
        if (
            nodes.dotted(product.right) == min_ps
            and isinstance(left, cst.Call)
            and nodes.last_name(left.func) == "max"
            and nodes.keyword(left, "dim") is not None
        ):
            return nodes.swap(node, left, cst.Attribute(value=left, attr=cst.Name("values")))
    return node


def _is_docstring(statement: cst.CSTNode) -> bool:
    expression = nodes.small(statement, cst.Expr)
    return expression is not None and nodes.string(expression.value) is not None


def gaps(view: View) -> tuple[str, ...]:
    """Name what upstream's form leaves open; see seams.md for each."""
    filtered, draw = view.find_function(SAMPLE_ASCEND), view.find_function(DRAW)
    function = filtered.function
    found = []
    if _repair_min_p(function, "min_ps") is not function:
        found.append("min_p_type_error")
    if nodes.calls(function, "gather") and nodes.calls(function, DRAW):
        found.append("neighbour_dependent_draw")
    if not _clamps(draw.node):
        found.append("gumbel_upper_bound")
    if not any(nodes.dotted(call.func) == "top_ps.to" for call in nodes.calls(function, "to")):
        found.append("top_p_dtype")
    return tuple(found)


SEAM = Seam(targets=targets, premise=premise, is_upstream=is_upstream, gaps=gaps)
