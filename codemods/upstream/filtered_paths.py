"""Find the fused and the sorted path of the function for filtered sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.draws import (
    SEED,
    drawn_from,
    require_masked_only,
    require_plain_return,
    require_softmax,
    unclear,
    unseeded_draw,
    without_draw,
)
from sgl_npu_patch.codemods.upstream.operators import FUSED_FILTER
from sgl_npu_patch.codemods.upstream.symbols import FROM_BATCH
from sgl_npu_patch.engine.cst import edit, pattern, read
from sgl_npu_patch.engine.cst.pattern import match
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import Spot, View
from sgl_npu_patch.templates import render

POSITIONS = "positions"
INTERFACE = ("logits", "top_ks", "top_ps", "min_ps", "need_min_p_sampling")
"""The parameters of the function, before ours."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The anchors and names of the function for filtered sampling.

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
    first, second = cst.Else(body=choice.node.body), choice.node.orelse
    fused_draw, sorted_draw = unseeded_draw(first, node), unseeded_draw(second, node)
    values, index, probs = _sorting(second)
    if drawn_from(sorted_draw) != values:
        raise AnchorError(
            sought="the draw of the sorted path",
            expected=f"torch.multinomial({values}, ...)",
            found=excerpt(read.code(sorted_draw.node), "torch.multinomial"),
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
    fused_call, found = read.only(
        pattern.find([f"$probs = $_.{FUSED_FILTER}(...)"], first),
        unclear("the fused operator", f"one assignment of {FUSED_FILTER}(...)"),
    )
    fused = drawn_from(fused_draw)
    require_softmax(fused, read.dotted(found["probs"]), without_draw(first, fused_draw))
    require_softmax(probs, logits, without_draw(second, sorted_draw))
    require_masked_only(values, without_draw(second, sorted_draw))
    total, _ = read.only(
        pattern.find(["$_ = $_.cumsum(...)"], second),
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
    """Return both operands of the choice: whether the operator is there, and what it takes."""
    test = choice.test
    return (
        [test.left, test.right]
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)
        else []
    )


def _fusable(node: cst.FunctionDef, choice: cst.If) -> str:
    """Return the test of a row inside the choice."""
    tests = [found for side in _sides(choice) if (found := match("torch.all($rows)", side))]
    rows = read.only(
        tests, unclear("the test of the rows", "hasattr(...) and torch.all(...) in that if")
    )["rows"]
    known = {"torch", *(p.name.value for p in read.parameters(node))}
    strange = next((n.value for n in read.find_all(rows, cst.Name) if n.value not in known), "")
    if strange:
        raise AnchorError(
            sought=f"the test of the rows in {node.name.value}",
            expected="torch.all of a test on the parameters",
            found=excerpt(read.code(rows), strange),
            action="write the test of the rows into torch.all",
        )
    return read.code(rows)


def _behind_row_test(node: cst.FunctionDef, choice: Step, flag: str) -> Step:
    """Return the choice, or our own count of the rows before it; nothing else may stand there."""
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
            found=excerpt(read.code(others[0])),
            action=as_released("the choice of a path"),
        )
    return first


def batch_flag(node: cst.FunctionDef) -> str:
    """Return the name of the parameter (0.5.21 ..) that says whether all rows may be fused."""
    *others, last = read.parameters(node) or [cst.Param(cst.Name(""))]
    known = tuple(p.name.value for p in others) == (*INTERFACE, SEED, POSITIONS)
    return last.name.value if known and read.dotted(last.default) == "False" else ""


def rows_of_batch_flag(view: View, filtered: Spot) -> str:
    """Return the test of a row that the batch's flag is made from, if that chooses the path."""
    flag = batch_flag(filtered.function)
    if not flag:
        return ""
    batch = FROM_BATCH.find(view, holding=f"{flag}=")
    found = [
        a.value for a in read.find_all(batch.node, cst.Arg) if read.last_name(a.keyword) == flag
    ]
    value = read.only(found, unclear(f"what {flag} is", "one keyword argument"))
    row = _row_test(value, "top_ks")
    if row:
        return row
    raise AnchorError(
        sought=f"what {flag} says of a batch",
        expected="all(LEAST <= ....top_k <= MOST for ...), whose limits a row is to be tested for",
        found=excerpt(read.code(value)),
        where=(batch.site,),
        action=as_released(f"what {flag} is made of"),
    )


def _row_test(batch_test: cst.CSTNode, top_ks: str) -> str:
    """Turn the test of all requests into a test of rows; empty for any other expression."""
    found = match("all($least <= $_.top_k <= $most for $_ in $_)", batch_test)
    limits = [found["least"], found["most"]] if found else []
    if not limits or not all(isinstance(limit, cst.Integer) for limit in limits):
        return ""
    least, most = map(read.code, limits)
    return f"({top_ks} <= {most}) & ({top_ks} >= {least})"


def count_of_rows(flag: str) -> str:
    """Return the statement that lets the rows themselves decide what a batch's flag does."""
    return render("count_of_rows", flag=flag)


def _sorting(orelse: cst.Else) -> tuple[str, str, str]:
    """Return the names of the sorted values, of their indices and of what was sorted."""
    found = pattern.find(["$values, $index = $probs.sort(...)"], orelse)
    if not found:
        raise unclear("the sort of the sorted path", "values, index = probs.sort(...)")(0)
    names = found[0][1]
    return read.dotted(names["values"]), read.dotted(names["index"]), read.dotted(names["probs"])


def _is_docstring(statement: cst.CSTNode) -> bool:
    expression = read.small(statement, cst.Expr)
    return expression is not None and read.string(expression.value) is not None
