"""Read libcst nodes: the few questions that codemods ask."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar, cast

import libcst as cst

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
ItemT = TypeVar("ItemT")
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

_TRIVIA = ("whitespace", "leading_lines", "lines_after", "lpar", "rpar", "lbr", "rbr", "comma",
           "semicolon", "trailing", "header", "footer", "indent", "colon", "equal")  # fmt: skip
"""How the names of those fields begin that hold white space and punctuation."""


_NODE_TYPES: dict[type[object], bool] = {}
"""`isinstance` with an abstract class is slow, and this is asked for every field."""


@lru_cache(maxsize=512)
def walk(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """List a node and all below it, white space and comments left out."""
    return tuple(_descend(node))


def _descend(node: cst.CSTNode) -> list[cst.CSTNode]:
    found = [node]
    for name in fields(type(node)):
        value = getattr(node, name)
        kind = type(value)
        if kind in (list, tuple):
            for item in value:
                if _is_node(type(item)):
                    found += _descend(item)
        elif _is_node(kind):
            found += _descend(value)
    return found


def _is_node(kind: type[object]) -> bool:
    known = _NODE_TYPES.get(kind)
    if known is None:
        known = _NODE_TYPES[kind] = issubclass(kind, cst.CSTNode)
    return known


@cache
def fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if not name.startswith(_TRIVIA))


def find_all(node: cst.CSTNode, kind: type[NodeT]) -> Iterator[NodeT]:
    """Yield the nodes of exactly one type, the given one included."""
    return (found for found in walk(node) if type(found) is kind)


@dataclass(frozen=True, slots=True)
class Step:
    """Stand for one statement: the block that holds it, its index there, and the way to it.

    ``above`` holds the enclosing compound statements, outermost first; for each, whether the
    statement is in its first block (an ``if``'s body) rather than in an ``else``.
    """

    node: Statement
    block: Sequence[cst.BaseStatement]
    index: int
    above: tuple[tuple[cst.CSTNode, bool], ...]

    @property
    def next(self) -> cst.BaseStatement | None:
        """Return the statement that follows in the same block."""
        rest = self.block[self.index + 1 :]
        return rest[0] if rest else None


def steps(node: cst.CSTNode, above: tuple[tuple[cst.CSTNode, bool], ...] = ()) -> Iterator[Step]:
    """Yield every statement inside a node in source order; nested definitions are not entered."""
    body = getattr(node, "body", None)
    if isinstance(body, cst.IndentedBlock):
        inner = (*above, (node, True))
        for index, statement in enumerate(body.body):
            yield Step(cast(Statement, statement), body.body, index, inner)
            if not isinstance(statement, cst.FunctionDef | cst.ClassDef):
                yield from steps(statement, inner)
    for name in ("handlers", "orelse", "finalbody", "cases"):
        part = getattr(node, name, None)
        for branch in part if isinstance(part, list | tuple) else [part]:
            if isinstance(branch, cst.If):
                yield from _elif(branch, above, node)
            elif isinstance(branch, cst.CSTNode):
                yield from steps(branch, (*above, (node, False)))


def _elif(
    node: cst.If, above: tuple[tuple[cst.CSTNode, bool], ...], parent: cst.CSTNode
) -> Iterator[Step]:
    return steps(node, (*above, (parent, False)))


def dotted(node: cst.CSTNode | None) -> str:
    """Return ``a.b.c`` of a name or attribute chain, an empty string for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def last_name(node: cst.CSTNode | None) -> str:
    """Return the last part of a name or attribute, whatever it is taken from."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def string(node: cst.CSTNode | None) -> str | None:
    """Return the value of a plain string literal, None for anything else."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def strings(node: cst.CSTNode | None) -> list[str] | None:
    """Return the values of a literal list, tuple or set of strings, None for anything else."""
    if not isinstance(node, cst.List | cst.Tuple | cst.Set):
        return None
    values = [string(element.value) for element in node.elements]
    return [v for v in values if v is not None] if None not in values else None


def small(node: cst.CSTNode | None, kind: type[NodeT]) -> NodeT | None:
    """Return the only small statement of a line, if it is of that type."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        only = node.body[0]
        return only if isinstance(only, kind) else None
    return None


def assigned(node: cst.CSTNode | None) -> tuple[str, cst.BaseExpression] | None:
    """Return the dotted target and the value of a single assignment statement."""
    plain = small(node, cst.Assign)
    if plain is not None and len(plain.targets) == 1:
        return dotted(plain.targets[0].target), plain.value
    annotated = small(node, cst.AnnAssign)
    if annotated is not None and annotated.value is not None:
        return dotted(annotated.target), annotated.value
    return None


def targets(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what the assignments in a node assign to, plain, annotated or augmented."""
    for found in walk(node):
        if isinstance(found, cst.Assign):
            yield from (each.target for each in found.targets)
        elif isinstance(found, cst.AnnAssign | cst.AugAssign):
            yield found.target


_ARITHMETIC: dict[type[cst.CSTNode], Callable[[float, float], float]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.Power: operator.pow,
}


def number(node: cst.CSTNode | None) -> float | None:
    """Return the value of a number, or of arithmetic with numbers, None for anything else."""
    if isinstance(node, cst.Integer | cst.Float):
        return float(node.evaluated_value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = number(node.expression)
        return None if value is None else -value
    if not isinstance(node, cst.BinaryOperation):
        return None
    compute = _ARITHMETIC.get(type(node.operator))
    left, right = number(node.left), number(node.right)
    if compute is None or left is None or right is None:
        return None
    try:
        return float(compute(left, right))
    except (ArithmeticError, TypeError):
        return None


def calls(node: cst.CSTNode, *names: str) -> list[cst.Call]:
    """List the calls of functions or methods by the last part of their names."""
    return [call for call in find_all(node, cst.Call) if last_name(call.func) in names]


def statement_call(node: cst.CSTNode | None) -> cst.Call | None:
    """Return the call that an expression statement consists of."""
    expression = small(node, cst.Expr)
    value = expression.value if expression is not None else None
    return value if isinstance(value, cst.Call) else None


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Return the value of a call's keyword argument."""
    return next((a.value for a in call.args if a.keyword and a.keyword.value == name), None)


def compared(node: cst.CSTNode | None) -> tuple[cst.BaseExpression, str, cst.BaseExpression] | None:
    """Split a comparison of two operands into left, operator and right."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return None
    target = node.comparisons[0]
    names: dict[type[cst.BaseCompOp], str] = {
        cst.Equal: "==", cst.NotEqual: "!=", cst.In: "in", cst.NotIn: "not in",
    }  # fmt: skip
    return node.left, names.get(type(target.operator), ""), target.comparator


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """List a function's positional parameters in order."""
    return [*function.params.posonly_params, *function.params.params]


def code(node: cst.CSTNode) -> str:
    """Print a node as one line of source for messages and comparisons."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def alike(a: object, b: object) -> bool:
    """Report whether two nodes are the same program text apart from layout and comments."""
    if isinstance(a, cst.SimpleString) and isinstance(b, cst.SimpleString):
        return a.evaluated_value == b.evaluated_value
    if isinstance(a, cst.CSTNode):
        return type(a) is type(b) and all(
            alike(getattr(a, name), getattr(b, name)) for name in fields(type(a))
        )
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


def only(found: Sequence[ItemT], error: Callable[[int], Exception]) -> ItemT:
    """Return the one element, or raise the error made for the number found."""
    if len(found) != 1:
        raise error(len(found))
    return found[0]
