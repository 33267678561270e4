"""Sample tokens by seed and position on the Ascend path of the sampler.

**Why**: the path uses the global random generator, so that a request's tokens depend on whatever
was sampled before. With upstream's own sampling by seed they still depend on the other requests of
the batch, whose parameters choose the path for all, and on one path on the rank of a token. Here
every path samples in vocabulary order, and each row takes the path that it would take alone.

**Where**: `srt/layers/sampler.py`, from `Sampler.forward` down to `multinomial_with_seed` (from
0.5.9). From 0.5.5.post3 to 0.5.8.post1 that function does not follow the distribution. From 0.5.13
on the same code is inserted before upstream's; only the product that raises for min-p is rewritten.

**Upstream**: pull request 21197 (0.5.13) passes seed and position on, with gaps.

**Ends when**: upstream's sampled tokens do not depend on the other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from sgl_npu_patch.codemods.upstream import filtered_paths, mode, sampling
from sgl_npu_patch.codemods.upstream import gaps as known
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import (
    DRAW,
    FORWARD_ASCEND,
    FROM_BATCH,
    SAMPLE_ASCEND,
    SAMPLE_FROM_LOGITS,
    Symbol,
)
from sgl_npu_patch.engine.cst import edit, layout, read
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target, Withheld
from sgl_npu_patch.engine.view import Spot, View
from sgl_npu_patch.templates import render

POSITIONS = "positions"
SEED = filtered_paths.SEED
INTERFACE = ("logits", "top_ks", "top_ps", "min_ps", "need_min_p_sampling")
"""The parameters of the function for filtered sampling, before ours."""


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
            'samples from unnormalised values; "pytorch" stays forced, whose seeded draw is '
            "reproducible and has the same defect",
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
        return draws(view)
    caller = FORWARD_ASCEND.find_caller(view)
    forward_ascend = FORWARD_ASCEND.find(view)
    end = draws(view)
    _require_caller(view, SAMPLE_FROM_LOGITS, forward_ascend)
    _require_names(view, forward_ascend, "torch")
    return (Target(caller, pass_from_forward), Target(forward_ascend, thread_forward), *end)


def draws(view: View) -> Sequence[Target]:
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
            filtered, partial(draw_filtered, draw=name, rows=_rows_of_batch_flag(view, filtered))
        ),
        Target(draw, fit_for_npu),
    )


def _rows_of_batch_flag(view: View, filtered: Spot) -> str:
    """Give the test of a row that the batch's flag is made from, if that chooses the path."""
    flag = batch_flag(filtered.function)
    if not flag:
        return ""
    batch = FROM_BATCH.find(view, holding=f"{flag}=")
    found = [
        a.value for a in read.find_all(batch.node, cst.Arg) if read.last_name(a.keyword) == flag
    ]
    value = read.only(found, filtered_paths.unclear(f"what {flag} is", "one keyword argument"))
    row = filtered_paths.row_test(value, "top_ks")
    if row:
        return row
    raise AnchorError(
        sought=f"what {flag} says of a batch",
        expected="all(LEAST <= ....top_k <= MOST for ...), whose limits a row is to be tested for",
        found=read.code(value)[:80],
        where=(batch.site,),
        action=as_released(f"what {flag} is made of"),
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
    """Tell whether every function has upstream's own form, ours being another."""
    if not SAMPLE_ASCEND.is_in(view):
        return None
    filtered = SAMPLE_ASCEND.find(view)
    native = (
        _draws_from_logs(filtered.node)
        and _draws_from_logs(SAMPLE_FROM_LOGITS.find(view).node)
        and _threads_positions(FORWARD_ASCEND.find(view).node)
        and _passes(FORWARD_ASCEND, FORWARD_ASCEND.find_caller(view).node)
        and _not_compiled(DRAW.find(view).node)
    )
    return filtered.site if native else None


def pass_from_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Pass the positions that ``forward`` already has."""
    assert isinstance(node, cst.FunctionDef)
    if not _has_parameters(node, POSITIONS):
        raise AnchorError(
            sought=f"the caller of {FORWARD_ASCEND}",
            expected=f"a function with a parameter {POSITIONS}",
            found=read.code(node.params)[:80],
            action=f"give it the parameter {POSITIONS}",
        )
    return _append_arguments(node, FORWARD_ASCEND, POSITIONS)


def thread_forward(node: cst.CSTNode) -> cst.CSTNode:
    """Take the positions and hand them on."""
    assert isinstance(node, cst.FunctionDef)
    node = _append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return _append_arguments(node, SAMPLE_FROM_LOGITS, POSITIONS)


def draw_simple(node: cst.CSTNode, draw: str) -> cst.CSTNode:
    """Draw by seed where nothing is filtered, and hand seed and positions on otherwise.

    Args:
        draw: the name of the function that draws by seed.
    """
    assert isinstance(node, cst.FunctionDef)
    step = filtered_paths.unseeded_draw(node, node)
    logits, info = _logits_and_info(node)
    probs = filtered_paths.drawn_from(step)
    filtered_paths.require_softmax(probs, logits, filtered_paths.without_draw(node, step))
    filtered_paths.require_plain_return(step, node.body.body, step.above[1:])
    text = render("draw_simple", info=info, logits=logits, probs=probs, draw=draw)
    node = edit.place(node, step, text, mark=draw)
    filtered = read.only(
        [s for s in read.steps(node) if filtered_paths.assigns_call(s, *SAMPLE_ASCEND.names)],
        filtered_paths.unclear(
            f"the call of {SAMPLE_ASCEND}", "one statement that assigns its result"
        ),
    )
    tokens, call = read.assigned(filtered.node) or ("", None)
    assert isinstance(call, cst.Call)
    text = render("greedy_row", info=info, tokens=tokens, logits=logits, top_ks=_argument(call, 1))
    node = edit.place(node, filtered, text, mark="argmax", after=True)
    node = _append_parameters(node, f"{POSITIONS}: torch.Tensor")
    return _append_arguments(node, SAMPLE_ASCEND, f"{info}.{SEED}", POSITIONS)


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
    flag = batch_flag(node)
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
    return _append_parameters(node, f"{SEED}: Optional[torch.Tensor]", f"{POSITIONS}: torch.Tensor")


_INTERFACE = {name: name for name in INTERFACE}


def batch_flag(node: cst.FunctionDef) -> str:
    """Name the last parameter of 0.5.21 .., which says whether all rows may be fused."""
    *others, last = read.parameters(node) or [cst.Param(cst.Name(""))]
    known = tuple(p.name.value for p in others) == (*INTERFACE, SEED, POSITIONS)
    return last.name.value if known and read.dotted(last.default) == "False" else ""


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
    if not _not_compiled(node):
        for decorator in node.decorators:
            name = read.dotted(_called(decorator.decorator))
            if name == "torch.compile":
                node = edit.swap(node, decorator.decorator, _disabled(decorator.decorator))
            elif name not in ("torch.no_grad", "torch.inference_mode"):
                raise AnchorError(
                    sought=f"the decorators of {DRAW}",
                    expected="torch.compile, or none that could compile it",
                    found=read.code(decorator.decorator)[:80],
                    action="take the decorator off, or apply torch.compile in its place",
                )
    if not _clamps(node):
        found = [s for s in read.steps(node) if _is_uniform(s)]
        step = read.only(
            found, filtered_paths.unclear("the uniform draw", "one division by uint32's maximum")
        )
        pair = read.assigned(step.node)
        assert pair is not None
        if not any(name in read.code(pair[1]) for name in ("float64", "double")):
            raise AnchorError(
                sought="the uniform draw",
                expected="one in float64, in which the largest value below 1 can be told from 1",
                found=read.code(step.node)[:80],
                action="draw in float64",
            )
        node = edit.place(node, step, render("clamp", uniform=pair[0]), after=True)
    return node


def _passes(called: Symbol, node: cst.CSTNode, *values: str) -> bool:
    """Tell whether every call hands on the positions, or those values."""
    return all(
        any(
            read.last_name(arg.value) == value
            for arg in call.args
            if arg.keyword is None or arg.keyword.value == value
        )
        for call in read.calls(node, *called.names)
        for value in values or (POSITIONS,)
    )


def _has_parameters(node: cst.CSTNode, *names: str) -> bool:
    assert isinstance(node, cst.FunctionDef)
    return set(names) <= {p.name.value for p in read.parameters(node)}


def _threads_positions(node: cst.CSTNode) -> bool:
    return _has_parameters(node, POSITIONS) and _passes(SAMPLE_FROM_LOGITS, node)


def _draws_from_logs(node: cst.CSTNode) -> bool:
    """Tell whether a function draws by seed from the log of probabilities, as upstream's does."""
    drawn = bool(read.calls(node, *DRAW.names)) and _takes_log(node)
    return _has_parameters(node, POSITIONS) and drawn


def _not_compiled(node: cst.CSTNode) -> bool:
    assert isinstance(node, cst.FunctionDef)
    for decorator in node.decorators:
        call = decorator.decorator
        name = read.dotted(_called(call))
        if name == "torch.compile":
            off = read.keyword(call, "disable") if isinstance(call, cst.Call) else None
            if not isinstance(off, cst.Call) or read.last_name(off.func) != "is_npu":
                return False
        elif name not in ("torch.no_grad", "torch.inference_mode"):
            return False
    return True


def _clamps(node: cst.CSTNode) -> bool:
    """Tell whether the uniform draw is bounded just below 1, or its first logarithm below 0."""
    assert isinstance(node, cst.FunctionDef)
    uniform = {pair[0] for s in read.steps(node) if _is_uniform(s) and (pair := _pair(s))}
    return any(
        filtered_paths.root(call) in uniform
        and (bound := read.number(read.keyword(call, "max"))) is not None
        and 0 < (0 if _takes_log(call.func) else 1) - bound < _NARROW
        for name in ("clamp_", "clamp")
        for call in read.calls(node, name)
    )


_NARROW = 1e-6
"""A bound further away than this from the largest value would change what is drawn."""


def _takes_log(node: cst.CSTNode) -> bool:
    return bool(read.calls(node, "log_") or read.calls(node, "log"))


def _pair(step: Step) -> tuple[str, cst.BaseExpression] | None:
    return read.assigned(step.node)


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


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


def _is_uniform(step: Step) -> bool:
    pair = read.assigned(step.node)
    return (
        pair is not None
        and pair[0] != ""
        and isinstance(pair[1], cst.BinaryOperation)
        and isinstance(pair[1].operator, cst.Divide)
        and "uint32" in read.code(pair[1].right)
    )


def _append_parameters(node: cst.FunctionDef, *sources: str) -> cst.FunctionDef:
    wanted = [source.split(":")[0] for source in sources]
    new = [source for source in sources if not _has_parameters(node, source.split(":")[0])]
    old = node.params.params
    there = len(sources) - len(new)
    names = [p.name.value for p in old]
    if len(set(names)) < len(names):
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected="each name once",
            found=read.code(node.params)[:80],
            action="take the parameter that a merge left out again",
        )
    if there and names[-there:] != wanted[:there]:
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected=f"{', '.join(wanted[:there])} as the last of them",
            found=read.code(node.params)[:80],
            action=f"put {', '.join(wanted)} last, at the calls too",
        )
    if not new:
        return node
    # The one caller passes nothing by keyword, so parameters of that kind stay at their defaults.
    required = any(param.default is None for param in node.params.kwonly_params)
    others = required or node.params.star_kwarg or node.params.posonly_params
    starred = isinstance(node.params.star_arg, cst.Param)
    if not old or old[-1].default is not None or others or starred:
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected="positional ones without defaults",
            found=read.code(node.params)[:80] or "none",
            action="make all parameters positional, without defaults",
        )
    return layout.append_parameter(node, *new, indent=_indent(node))


def _append_arguments(node: cst.FunctionDef, called: Symbol, *values: str) -> cst.FunctionDef:
    passed = [_passes(called, node, value.rpartition(".")[2]) for value in values]
    given = [value for value, there in zip(values, passed, strict=True) if there]
    calls = read.calls(node, *called.names)
    if len(given) == len(values) and calls and all(_ends_with(c, given) for c in calls):
        return node
    missing = values[len(given) :]
    for step in read.steps(node):
        if not isinstance(step.node, cst.SimpleStatementLine):
            continue
        for call in read.calls(step.node, *called.names):
            unnamed = call.args and not any(arg.star or arg.keyword for arg in call.args)
            if not unnamed or not missing or not _ends_with(call, values[: len(given)]):
                raise AnchorError(
                    sought=f"the call of {called}",
                    expected="positional arguments only, "
                    f"none of {', '.join(values)} but at the end",
                    found=read.code(call)[:80],
                    action=f"append {', '.join(values)} by hand",
                )
            indent = _indent(node) + 4 * len(step.above)
            width = indent + len(read.code(step.node.with_changes(leading_lines=[])))
            return edit.swap(
                node, call, layout.append_argument(call, *missing, indent=indent, width=width)
            )
    raise AnchorError(
        sought=f"the call of {called}",
        expected=f"a statement of {node.name.value} itself, on lines of its own",
        found="a call in another place",
        action=f"append {', '.join(values)} by hand",
    )


def _ends_with(call: cst.Call, values: Sequence[str]) -> bool:
    """Tell whether a call's last arguments are those, in that order or by keyword.

    Keyword arguments of other names, such as a batch's flag, do not count.
    """
    names = [value.rpartition(".")[2] for value in values]
    args = [a for a in call.args if a.keyword is None or a.keyword.value in names]
    first = len(args) - len(values)
    last = args[max(first, 0) :]
    again = any(read.code(arg.value) in values for arg in args[: max(first, 0)])
    return (
        not again
        and len(last) == len(values)
        and all(
            read.code(arg.value) == value if arg.keyword is None else arg.keyword.value == name
            for arg, value, name in zip(last, values, names, strict=True)
        )
    )


def _indent(node: cst.FunctionDef) -> int:
    """Tell a method, which stands one level deeper than a function, by its first parameter."""
    found = read.parameters(node)
    return 4 if found and found[0].name.value in ("self", "cls") else 0


def _argument(call: cst.Call, index: int) -> str:
    if len(call.args) <= index or call.args[index].keyword is not None:
        raise AnchorError(
            sought=f"the arguments of {SAMPLE_ASCEND}",
            expected=", ".join(INTERFACE),
            found=read.code(call)[:80],
            action="pass them by position, in that order",
        )
    return read.code(call.args[index].value)


def _repair_min_p(node: cst.FunctionDef, min_ps: str) -> cst.FunctionDef:
    """Take the values of ``max(dim=...)``, which gives a pair that cannot be multiplied."""
    for product in read.find_all(node, cst.BinaryOperation):
        for pair, other in ((product.left, product.right), (product.right, product.left)):
            if (
                any(name.value == min_ps for name in read.find_all(other, cst.Name))
                and isinstance(pair, cst.Call)
                and read.last_name(pair.func) == "max"
                and pair.args
            ):
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
    if not _clamps(draw.node):
        found.append(known.GUMBEL_UPPER_BOUND.name)
    if not any(read.dotted(call.func) == "top_ps.to" for call in read.calls(function, "to")):
        found.append(known.TOP_P_DTYPE.name)
    return tuple(found)


SEAM = Seam(targets=targets, premise=premise, gaps=gaps)
