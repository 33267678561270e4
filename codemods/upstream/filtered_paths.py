"""Read the Ascend path of the sampler, and insist on what a seeded draw relies on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.operators import FUSED_FILTER
from sgl_npu_patch.codemods.upstream.symbols import DRAW
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.templates import render

SEED = "sampling_seed"


@dataclass(frozen=True, slots=True)
class Paths:
    """Hold the anchors and names of the function for filtered sampling.

    ``fusable`` is the test of a row for the fused path, which has to stand before ``first``;
    ``fused``, ``probs``, ``index`` and ``sorted`` name the probabilities of that path, those of
    the sorted path, and their order.
    """

    choice: Step
    fusable: str
    first: Step
    fused_call: Step
    fused_draw: Step
    fused: str
    total: Step
    sorted_draw: Step
    probs: str
    index: str
    sorted: str


def filtered_paths(node: cst.FunctionDef, flag: str = "", rows: str = "") -> Paths:
    """Find both paths of the function, each with one unseeded draw from masked probabilities.

    Args:
        flag: the parameter that says of the batch whether it takes the fused path (0.5.21 ..).
        rows: the test of a row then, which the function does not make.

    Raises:
        AnchorError: an anchor is missing, or what is drawn from is something else.
    """
    logits = read.parameters(node)[0].name.value
    choice = _choice(node)
    top = _behind_row_test(node, choice, flag)
    assert isinstance(choice.node, cst.If)
    assert isinstance(choice.node.orelse, cst.Else)
    first, second = _bodied(choice.node.body), choice.node.orelse
    fused_draw, sorted_draw = unseeded_draw(first, node), unseeded_draw(second, node)
    values, index, probs = _sorting(second)
    if drawn_from(sorted_draw) != values:
        raise AnchorError(
            sought="the draw of the sorted path",
            expected=f"torch.multinomial({values}, ...)",
            found=read.code(sorted_draw.node)[:60],
            action=f"draw from {values}",
        )
    for step in (fused_draw, sorted_draw):
        if len(step.above) != 1:
            raise AnchorError(
                sought=f"the unseeded draw in {node.name.value}",
                expected="one that each path always makes",
                found="one under a further condition",
                action="take the condition away",
            )
        require_plain_return(step, node.body.body, ((choice.node, True),))
    fused_call = read.only(
        [s for s in read.steps(first) if assigns_call(s, FUSED_FILTER)],
        unclear("the fused operator", f"one assignment of {FUSED_FILTER}(...)"),
    )
    pair = read.assigned(fused_call.node)
    fused = drawn_from(fused_draw)
    require_softmax(fused, pair[0] if pair else "", without_draw(first, fused_draw))
    require_softmax(probs, logits, without_draw(second, sorted_draw))
    _require_masked_only(values, without_draw(second, sorted_draw))
    total = read.only(
        [s for s in read.steps(second) if assigns_call(s, "cumsum")],
        unclear("the cumulative sum of the sorted path", "one assignment of torch.cumsum"),
    )
    return Paths(
        choice=choice,
        fusable=rows if flag else _fusable(node, choice.node),
        first=top,
        fused_call=fused_call,
        fused_draw=fused_draw,
        fused=fused,
        total=total,
        sorted_draw=sorted_draw,
        probs=probs,
        index=index,
        sorted=values,
    )


def unclear(sought: str, expected: str) -> Callable[[int], AnchorError]:
    return lambda count: AnchorError(
        sought=sought,
        expected=expected,
        found=f"{count} of them",
        action=as_released("the function"),
    )


def unseeded_draw(where: cst.CSTNode, function: cst.FunctionDef) -> Step:
    """Find the one statement that draws without a seed, or chooses whether to.

    Upstream's own draw by seed (0.5.13 ..) is the other branch of an ``if`` around it.
    """
    found = [
        step
        for step in read.steps(_bodied(where))
        if isinstance(step.node, cst.SimpleStatementLine)
        and any(
            read.dotted(c.func) == "torch.multinomial" for c in read.calls(step.node, "multinomial")
        )
    ]
    step = read.only(
        found,
        unclear(
            f"the unseeded draw in {function.name.value}", "one torch.multinomial on each path"
        ),
    )
    # An else is a statement above as well, inside its if.
    holders = [(step.node, True), *(pair for pair in step.above if not _is_else(pair[0]))]
    holder, in_body = holders[-1]
    if not isinstance(holder, cst.If) or not isinstance(holder.orelse, cst.Else):
        return step
    asked, _, rest = read.code(holder.test).partition(" is ")
    if not asked.endswith(SEED) or rest != ("None" if in_body else "not None"):
        return step
    _require_only_draw(step, holder.orelse.body if in_body else holder.body)
    return next(s for s in read.steps(_bodied(where)) if s.node is holder)


def _is_else(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Else)


_DRAWS = frozenset({"to", "double", "log", "log_", "view", *DRAW.names})
"""What upstream's draw by seed calls; whatever else its branch does must not be passed by."""


def _require_only_draw(unseeded: Step, seeded: cst.BaseSuite) -> None:
    """Insist that both branches give the tokens one name and do nothing else."""
    last = read.assigned(seeded.body[-1])
    drawn = read.assigned(unseeded.node)
    plain = all(
        read.assigned(s) or read.small(s, cst.Del) or read.statement_call(s) for s in seeded.body
    )
    called = {read.last_name(call.func) for call in read.find_all(seeded, cst.Call)}
    same = last is not None and drawn is not None and last[0] == drawn[0]
    if len(unseeded.block) == 1 and same and plain and called & {*DRAW.names} and called <= _DRAWS:
        return
    raise AnchorError(
        sought="upstream's draw by seed",
        expected=f"a branch that draws by {DRAW} and one by torch.multinomial, and no more",
        found=read.code(seeded)[:80],
        action="take whatever else they do out of both branches",
    )


def without_draw(where: cst.CSTNode, draw: Step) -> cst.CSTNode:
    """Leave the draw out: what upstream's own makes of its probabilities is passed by."""
    return edit.insert(where, draw.node, instead=())


def drawn_from(step: Step) -> str:
    call = read.calls(step.node, "multinomial")[0]
    given = read.keyword(call, "input")
    if given is None and call.args and call.args[0].keyword is None:
        given = call.args[0].value
    name = read.dotted(given)
    if not name:
        raise AnchorError(
            sought="what an unseeded draw is made from",
            expected="torch.multinomial of a variable",
            found=read.code(call)[:80],
            action="draw from a variable that holds the probabilities",
        )
    return name


def require_softmax(name: str, origin: str, where: cst.CSTNode) -> None:
    """Insist that a variable is the softmax of another, of which some entries may be masked.

    What is drawn by seed are the logits themselves where this is not 0.
    """
    values = [v for v in _assigned_to(name, where) if not _is_method(v, "masked_fill", name)]
    if len(values) == 1 and _is_softmax(values[0], origin) and not _changes_in_place(name, where):
        return
    raise AnchorError(
        sought=f"what {name} holds where it is drawn from",
        expected=f"the softmax of {origin}, masked or not, and nothing else",
        found="another computation" if values else "no assignment",
        action=as_released("the function"),
    )


def _require_masked_only(name: str, where: cst.CSTNode) -> None:
    """Insist that nothing but masks changes the sorted probabilities."""
    values = [v for v in _assigned_to(name, where) if not _is_method(v, "masked_fill", name)]
    if values or _changes_in_place(name, where):
        raise AnchorError(
            sought=f"what {name} holds where it is drawn from",
            expected="the sorted probabilities, masked or not, and nothing else",
            found="another computation",
            action=as_released("the function"),
        )


def _assigned_to(name: str, where: cst.CSTNode) -> list[cst.BaseExpression]:
    pairs = (read.assigned(step.node) for step in read.steps(where))
    return [pair[1] for pair in pairs if pair is not None and pair[0] == name]


def _changes_in_place(name: str, where: cst.CSTNode) -> bool:
    methods = {
        read.last_name(call.func)
        for call in read.find_all(where, cst.Call)
        if isinstance(call.func, cst.Attribute) and root(call) == name
    }
    added = any(read.dotted(n.target) == name for n in read.find_all(where, cst.AugAssign))
    return added or any(m.endswith("_") and m != "masked_fill_" for m in methods)


def _is_softmax(value: cst.BaseExpression, origin: str) -> bool:
    if not isinstance(value, cst.Call) or read.last_name(value.func) != "softmax":
        return False
    by_torch = read.dotted(value.func) in ("torch.softmax", "torch.nn.functional.softmax")
    if by_torch:
        return bool(value.args) and read.dotted(value.args[0].value) == origin
    return _is_method(value, "softmax", origin)


def _is_method(value: cst.CSTNode, method: str, name: str) -> bool:
    return isinstance(value, cst.Call) and read.dotted(value.func) == f"{name}.{method}"


def root(node: cst.CSTNode) -> str:
    """Name what a chain of method calls starts from."""
    while isinstance(node, cst.Call | cst.Attribute):
        node = node.func if isinstance(node, cst.Call) else node.value
    return read.dotted(node)


_CONVERSIONS = frozenset({"to", "view", "gather", "squeeze", "reshape", "long", "int"})


def require_plain_return(
    step: Step, body: Sequence[cst.CSTNode], above: Sequence[tuple[cst.CSTNode, bool]]
) -> None:
    """Insist that drawn tokens are only converted and returned: a seeded draw returns at once.

    Args:
        body: the function's statements.
        above: the statement of the function that holds the draw, and no other.
    """
    behind: list[cst.CSTNode] = [step.node, *step.block[step.index + 1 :]]
    if not any(read.small(statement, cst.Return) for statement in behind) and len(above) == 1:
        outer = next(i for i, statement in enumerate(body) if statement is above[0][0])
        behind += body[outer + 1 :]
    *between, end = behind
    given = read.small(end, cst.Return)
    values = [*(_converted(s) for s in between[1:]), given.value if given else None]
    for statement, value in zip(behind[1:] or behind, values, strict=True):
        call = isinstance(value, cst.Call) and read.last_name(value.func) in _CONVERSIONS
        if not call and not (value is not None and read.dotted(value)):
            raise AnchorError(
                sought="what becomes of the drawn tokens",
                expected="conversions, then a return of nothing else",
                found=read.code(statement)[:80],
                action="take out what else is done with the tokens, or returned",
            )


def _converted(statement: cst.CSTNode) -> cst.BaseExpression | None:
    pair = read.assigned(statement)
    return pair[1] if pair else None


def _bodied(node: cst.CSTNode) -> cst.CSTNode:
    return cst.Else(body=node) if isinstance(node, cst.IndentedBlock) else node


def assigns_call(step: Step, *names: str) -> bool:
    pair = read.assigned(step.node)
    return (
        pair is not None and isinstance(pair[1], cst.Call) and read.last_name(pair[1].func) in names
    )


def _choice(node: cst.FunctionDef) -> Step:
    """Find the choice between the fused and the sorted path."""
    found = [
        step
        for step in read.steps(node)
        if isinstance(step.node, cst.If)
        and read.calls(step.node.test, "hasattr")
        and isinstance(step.node.orelse, cst.Else)
        and len(step.above) == 1
    ]
    return read.only(
        found,
        unclear("the choice of the fused path", "one if hasattr(torch_npu, ...) with an else"),
    )


def _sides(choice: cst.If) -> list[cst.BaseExpression]:
    """Give both operands of the choice: whether the operator is there, and what it takes."""
    test = choice.test
    return (
        [test.left, test.right]
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)
        else []
    )


def _fusable(node: cst.FunctionDef, choice: cst.If) -> str:
    """Give the test of a row inside the choice."""
    calls = [
        side
        for side in _sides(choice)
        if isinstance(side, cst.Call) and read.dotted(side.func) == "torch.all"
    ]
    call = read.only(
        calls, unclear("the test of the rows", "hasattr(...) and torch.all(...) in that if")
    )
    rows = call.args[0].value if len(call.args) == 1 else call
    known = {"torch", *(p.name.value for p in read.parameters(node))}
    if rows is call or any(n.value not in known for n in read.find_all(rows, cst.Name)):
        raise AnchorError(
            sought=f"the test of the rows in {node.name.value}",
            expected="torch.all of a test on the parameters",
            found=read.code(call)[:80],
            action="write the test of the rows into torch.all",
        )
    return read.code(rows)


def _behind_row_test(node: cst.FunctionDef, choice: Step, flag: str) -> Step:
    """Give the choice, or our own count of the rows before it; nothing else may stand there."""
    assert isinstance(choice.node, cst.If)
    before = [s for s in choice.block[: choice.index] if not _is_docstring(s)]
    first = choice
    if flag and before and read.alike(before[-1], edit.block(count_of_rows(flag))[0]):
        counted = cast(cst.SimpleStatementLine, before.pop())
        first = replace(choice, node=counted, index=choice.index - 1)
    ours = len(before) == 1 and bool(read.calls(before[0], node.name.value))
    asked = not flag or flag in map(read.dotted, _sides(choice.node))
    others = [*([] if ours else before), *([] if asked else [choice.node.test])]
    if others:
        raise AnchorError(
            sought=f"the choice of the fused path in {node.name.value}",
            expected=f"hasattr(...) and {flag or 'torch.all(...)'} "
            "in the function's first statement",
            found=read.code(others[0])[:80],
            action=as_released("the choice of a path"),
        )
    return first


def row_test(batch_test: cst.CSTNode, top_ks: str) -> str:
    """Turn ``all(1 <= ....top_k <= 1024 for ...)`` of requests into a test of rows.

    Returns an empty text for anything else.
    """
    call = batch_test if isinstance(batch_test, cst.Call) and len(batch_test.args) == 1 else None
    every = call.args[0].value if call and read.dotted(call.func) == "all" else None
    chain = every.elt if isinstance(every, cst.GeneratorExp) and not every.for_in.ifs else None
    targets = chain.comparisons if isinstance(chain, cst.Comparison) else ()
    limits = [chain.left, targets[-1].comparator] if isinstance(chain, cst.Comparison) else []
    known = (
        len(targets) == 2
        and all(isinstance(target.operator, cst.LessThanEqual) for target in targets)
        and read.last_name(targets[0].comparator) == "top_k"
        and all(isinstance(limit, cst.Integer) for limit in limits)
    )
    least, most = map(read.code, limits) if known else ("", "")
    return f"({top_ks} <= {most}) & ({top_ks} >= {least})" if known else ""


def count_of_rows(flag: str) -> str:
    """Give the statement that lets the rows themselves decide what a batch's flag does."""
    return render("count_of_rows", flag=flag)


def _sorting(orelse: cst.Else) -> tuple[str, str, str]:
    """Name the sorted values, their indices and what was sorted."""
    for step in read.steps(orelse):
        plain = read.small(step.node, cst.Assign)
        if plain is None or not isinstance(plain.value, cst.Call):
            continue
        target, function = plain.targets[0].target, plain.value.func
        if (
            isinstance(target, cst.Tuple)
            and len(target.elements) == 2
            and isinstance(function, cst.Attribute)
            and function.attr.value == "sort"
        ):
            values, index = (read.dotted(element.value) for element in target.elements)
            return values, index, read.dotted(function.value)
    raise unclear("the sort of the sorted path", "values, index = probs.sort(...)")(0)


def _is_docstring(statement: cst.CSTNode) -> bool:
    expression = read.small(statement, cst.Expr)
    return expression is not None and read.string(expression.value) is not None
