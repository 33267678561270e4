"""Find how the sampler draws tokens, and insist on what a seeded draw in front relies on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import DRAW
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import match, match_any
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.text.excerpt import excerpt

SEED = "sampling_seed"


def unclear(sought: str, expected: str) -> Callable[[int], AnchorError]:
    """Return what makes the error for a number of anchors other than one."""
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
        for step in read.steps(where)
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
    holders = [pair for pair in step.above if not isinstance(pair[0], cst.Else)]
    holder, in_body = holders[-1] if holders else (step.node, True)
    seed = match(_UNSEEDED if in_body else _SEEDED, holder)
    if seed is None or read.last_name(seed["seed"]) != SEED:
        return step
    assert isinstance(holder, cst.If)
    assert isinstance(holder.orelse, cst.Else)
    _require_only_draw(step, holder.orelse.body if in_body else holder.body)
    return next(s for s in read.steps(where) if s.node is holder)


_UNSEEDED = "if $seed is None:\n    ...\nelse:\n    ...\n"
_SEEDED = "if $seed is not None:\n    ...\nelse:\n    ...\n"
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
    by_seed = not called.isdisjoint(DRAW.names) and called <= _DRAWS
    if len(unseeded.block) == 1 and same and plain and by_seed:
        return
    strange = next((read.code(s) for s in seeded.body if not _is_of_draw(s)), "")
    raise AnchorError(
        sought="upstream's draw by seed",
        expected=f"a branch that draws by {DRAW} and one by torch.multinomial, and no more",
        found=excerpt(read.code(seeded), strange),
        action="take whatever else they do out of both branches",
    )


def _is_of_draw(statement: cst.CSTNode) -> bool:
    return all(read.last_name(c.func) in _DRAWS for c in read.find_all(statement, cst.Call))


def without_draw(where: cst.CSTNode, draw: Step) -> cst.CSTNode:
    """Leave the draw out: what upstream's own makes of its probabilities is passed by."""
    return edit.insert(where, draw.node, instead=())


def drawn_from(step: Step) -> str:
    """Return the name of the variable that an unseeded draw is made from."""
    call = read.calls(step.node, "multinomial")[0]
    given = read.keyword(call, "input")
    if given is None and call.args and call.args[0].keyword is None:
        given = call.args[0].value
    name = read.dotted(given)
    if not name:
        raise AnchorError(
            sought="what an unseeded draw is made from",
            expected="torch.multinomial of a variable",
            found=excerpt(read.code(call)),
            action="draw from a variable that holds the probabilities",
        )
    return name


_SOFTMAX = ("torch.softmax($of, ...)", "torch.nn.functional.softmax($of, ...)", "$of.softmax(...)")


def require_softmax(name: str, origin: str, where: cst.CSTNode) -> None:
    """Insist that a variable is the softmax of another, of which some entries may be masked.

    What is drawn by seed are the logits themselves where this is not 0.
    """
    values = _unmasked(name, where)
    if len(values) == 1 and not _changes_in_place(name, where):
        softmax = match_any(_SOFTMAX, values[0])
        if softmax is not None and read.dotted(softmax["of"]) == origin:
            return
    raise AnchorError(
        sought=f"what {name} holds where it is drawn from",
        expected=f"the softmax of {origin}, masked or not, and nothing else",
        found="another computation" if values else "no assignment",
        action=as_released("the function"),
    )


def require_masked_only(name: str, where: cst.CSTNode) -> None:
    """Insist that nothing but masks changes a variable."""
    if _unmasked(name, where) or _changes_in_place(name, where):
        raise AnchorError(
            sought=f"what {name} holds where it is drawn from",
            expected="the sorted probabilities, masked or not, and nothing else",
            found="another computation",
            action=as_released("the function"),
        )


def _unmasked(name: str, where: cst.CSTNode) -> list[cst.BaseExpression]:
    """List what is assigned to a variable, except for its own masked form."""
    pairs = (read.assigned(step.node) for step in read.steps(where))
    values = [pair[1] for pair in pairs if pair is not None and pair[0] == name]
    return [value for value in values if match(f"{name}.masked_fill(...)", value) is None]


def _changes_in_place(name: str, where: cst.CSTNode) -> bool:
    methods = {
        read.last_name(call.func)
        for call in read.find_all(where, cst.Call)
        if isinstance(call.func, cst.Attribute) and root(call) == name
    }
    added = any(read.dotted(n.target) == name for n in read.find_all(where, cst.AugAssign))
    return added or any(m.endswith("_") and m != "masked_fill_" for m in methods)


def root(node: cst.CSTNode) -> str:
    """Return the name that a chain of method calls starts from."""
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
                found=excerpt(read.code(statement)),
                action="take out what else is done with the tokens, or returned",
            )


def _converted(statement: cst.CSTNode) -> cst.BaseExpression | None:
    pair = read.assigned(statement)
    return pair[1] if pair else None
