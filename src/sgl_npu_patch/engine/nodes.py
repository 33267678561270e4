"""Read and edit libcst nodes: the few questions and changes that codemods are made of.

libcst's own matchers are not used: importing them takes as long as a whole run of this tool.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import libcst as cst

from sgl_npu_patch.engine.errors import AnchorError

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
ItemT = TypeVar("ItemT")
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

_LINE_LENGTH = 88
"""SGLang's formatter's; a longer line would be reported as badly formatted."""

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
    for name in _fields(type(node)):
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
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
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
        """Give the statement that follows in the same block."""
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
    """Give ``a.b.c`` of a name or attribute chain, an empty string for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def last_name(node: cst.CSTNode | None) -> str:
    """Give the last part of a name or attribute, whatever it is taken from."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def string(node: cst.CSTNode | None) -> str | None:
    """Give the value of a plain string literal, None for anything else."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def strings(node: cst.CSTNode | None) -> list[str] | None:
    """Give the values of a literal list, tuple or set of strings, None for anything else."""
    if not isinstance(node, cst.List | cst.Tuple | cst.Set):
        return None
    values = [string(element.value) for element in node.elements]
    return [v for v in values if v is not None] if None not in values else None


def small(node: cst.CSTNode | None, kind: type[NodeT]) -> NodeT | None:
    """Give the only small statement of a line, if it is of that type."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        only = node.body[0]
        return only if isinstance(only, kind) else None
    return None


def assigned(node: cst.CSTNode | None) -> tuple[str, cst.BaseExpression] | None:
    """Give the dotted target and the value of a single assignment statement."""
    plain = small(node, cst.Assign)
    if plain is not None and len(plain.targets) == 1:
        return dotted(plain.targets[0].target), plain.value
    annotated = small(node, cst.AnnAssign)
    if annotated is not None and annotated.value is not None:
        return dotted(annotated.target), annotated.value
    return None


_ARITHMETIC: dict[type[cst.CSTNode], Callable[[float, float], float]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.Power: operator.pow,
}


def number(node: cst.CSTNode | None) -> float | None:
    """Give the value of a number, or of arithmetic with numbers, None for anything else."""
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


def calls(node: cst.CSTNode, name: str) -> list[cst.Call]:
    """List the calls of a function or method by the last part of its name."""
    return [call for call in find_all(node, cst.Call) if last_name(call.func) == name]


def statement_call(node: cst.CSTNode | None) -> cst.Call | None:
    """Give the call that an expression statement consists of."""
    expression = small(node, cst.Expr)
    value = expression.value if expression is not None else None
    return value if isinstance(value, cst.Call) else None


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Give the value of a call's keyword argument."""
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


@lru_cache(maxsize=64)
def block(source: str, *, blank: bool = False) -> Sequence[Statement]:
    """Parse a template into the statements to insert, with an empty line in front if asked."""
    module = cst.parse_module(source)
    found: list[Statement] = []
    for statement in module.body:
        above = [*(() if found else module.header), *statement.leading_lines]
        if blank and not found:
            above.insert(0, cst.EmptyLine())
        # An empty line must not get the indentation of where it lands.
        lines = [line.with_changes(indent=line.comment is not None) for line in above]
        found.append(statement.with_changes(leading_lines=lines))
    return found


def alike(
    a: cst.CSTNode, b: cst.CSTNode, same: Callable[[cst.CSTNode, cst.CSTNode], bool] | None = None
) -> bool:
    """Tell whether two nodes are the same program text apart from layout and comments.

    Args:
        same: compares the nodes below instead.
    """
    if isinstance(a, cst.SimpleString) and isinstance(b, cst.SimpleString):
        return a.evaluated_value == b.evaluated_value
    return type(a) is type(b) and all(
        _alike_values(getattr(a, name), getattr(b, name), same or alike)
        for name in _fields(type(a))
    )


def _alike_values(a: object, b: object, same: Callable[[cst.CSTNode, cst.CSTNode], bool]) -> bool:
    if isinstance(a, cst.CSTNode) and isinstance(b, cst.CSTNode):
        return same(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(
            _alike_values(x, y, same) for x, y in zip(a, b, strict=True)
        )
    return a == b


def place(
    root: NodeT, step: Step, text: str, *, mark: str = "", after: bool = False, blank: bool = False
) -> NodeT:
    """Put a template's statements before or after an anchor, unless they stand there already.

    Args:
        root: holds the anchor; returned as it is where nothing is to be done.
        mark: a name that only our statements use in the anchor's block.
        blank: puts an empty line above.

    Raises:
        AnchorError: the block uses the mark, but not in statements alike to the template's.
    """
    wanted = block(text, blank=blank)
    start = step.index + 1 if after else max(step.index - len(wanted), 0)
    there = step.block[start : start + len(wanted) if after else step.index]
    if len(there) == len(wanted) and all(map(alike, there, wanted)):
        return root
    others = [s for s in step.block if s is not step.node]
    beside = there[0] if after and there else there[-1] if there else None
    for other in others:
        used = mark and any(name.value == mark for name in find_all(other, cst.Name))
        if used or (other is beside and _asks_the_same(other, wanted[-1])):
            expected, found = _where_they_part(code(wanted[-1]), code(other))
            raise AnchorError(
                sought="what this tool inserts here",
                expected=expected,
                found=found,
                action="take that statement out, or restore what this tool wrote, and apply again",
            )
    if after:
        return insert(root, step.node, after=wanted)
    return insert(root, step.node, before=wanted)


def _where_they_part(a: str, b: str) -> tuple[str, str]:
    """Cut two texts down to what surrounds their first difference, if they begin alike."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    first = max(same - 120, 0)
    lead = "..." if first else ""
    return lead + a[first : first + 200], lead + b[first : first + 200]


def _asks_the_same(a: cst.CSTNode, b: cst.CSTNode) -> bool:
    """Tell whether two statements are ifs of which one asks for what the other does, or more."""
    if not (isinstance(a, cst.If) and isinstance(b, cst.If)):
        return False
    return any(
        alike(part, whole)
        for whole, other in ((a.test, b.test), (b.test, a.test))
        for part in walk(other)
    )


def insert(
    root: NodeT,
    anchor: cst.CSTNode,
    *,
    before: Sequence[cst.CSTNode] = (),
    after: Sequence[cst.CSTNode] = (),
    instead: Sequence[cst.CSTNode] | None = None,
) -> NodeT:
    """Put statements around an anchor, found by identity, or in its place."""
    middle = [anchor] if instead is None else instead
    return _exchange(root, anchor, [*before, *middle, *after])


def swap(root: NodeT, old: cst.CSTNode, new: cst.CSTNode) -> NodeT:
    """Replace one node, found by identity."""
    return _exchange(root, old, [new])


def _exchange(root: NodeT, old: cst.CSTNode, new: Sequence[cst.CSTNode]) -> NodeT:
    """Rebuild only the nodes above ``old``; all others keep their identity.

    libcst's own transformers rebuild every node, so that a second anchor would not be found.
    """
    rebuilt = _rebuilt(root, old, new)
    if rebuilt is root:
        raise AssertionError(f"not below {type(root).__name__}: {code(old)}")
    return cast(NodeT, rebuilt)


def _rebuilt(node: cst.CSTNode, old: cst.CSTNode, new: Sequence[cst.CSTNode]) -> cst.CSTNode:
    if node is old:
        (single,) = new
        return single
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            changed = _rebuilt(value, old, new)
            if changed is not value:
                return node.with_changes(**{name: changed})
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if item is old:
                    return node.with_changes(**{name: [*value[:index], *new, *value[index + 1 :]]})
                if isinstance(item, cst.CSTNode):
                    changed = _rebuilt(item, old, new)
                    if changed is not item:
                        rest = [*value[:index], changed, *value[index + 1 :]]
                        return node.with_changes(**{name: rest})
    return node


def append_to_list(node: NodeT, value: str, width: int) -> NodeT:
    """Append a string to a list, tuple or set literal in the layout and quotes of the others.

    Args:
        node: the literal; it holds at least one plain string.
        width: how long the line is on which it starts.
    """
    sequence = cast(cst.List, node)
    *before, last = sequence.elements
    quote = code(last.value)[-1]
    added = cst.Element(cst.SimpleString(f"{quote}{value}{quote}"))
    opening, closing = _edges(sequence)
    if opening is None or closing is None:
        return cast(NodeT, sequence.with_changes(elements=_listed(before, last, [added], _SPACE)))
    broken = isinstance(closing, cst.ParenthesizedWhitespace) or any(
        isinstance(e.comma, cst.Comma)
        and isinstance(e.comma.whitespace_after, cst.ParenthesizedWhitespace)
        for e in sequence.elements
    )
    if not broken and width + len(value) + 4 > _LINE_LENGTH >= width:
        spread = _line_break("    ")
        old = [_followed(e, spread) for e in sequence.elements]
        elements = [*old, _followed(added, _line_break(""))]
        return cast(NodeT, _edged(sequence, elements, spread, cst.SimpleWhitespace("")))
    lead = before[-1].comma.whitespace_after if before else opening  # type: ignore[union-attr]
    fresh = _bare(lead) if isinstance(lead, cst.ParenthesizedWhitespace) else _SPACE
    elements = [
        *before,
        _followed(last, _kept_comment(closing, fresh)),
        added.with_changes(comma=last.comma),
    ]
    return cast(NodeT, _edged(sequence, elements, opening, _bare(closing)))


_SPACE = cst.SimpleWhitespace(" ")
Space = cst.BaseParenthesizableWhitespace


def _line_break(indent: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(indent))


def _edges(sequence: cst.List) -> tuple[Space | None, Space | None]:
    """Give the white space behind the opening and before the closing bracket, if there are any."""
    literal: Any = sequence
    if isinstance(literal, cst.Tuple):
        if not literal.lpar:
            return None, None
        return literal.lpar[-1].whitespace_after, literal.rpar[0].whitespace_before
    if isinstance(literal, cst.Set):
        return literal.lbrace.whitespace_after, literal.rbrace.whitespace_before
    return sequence.lbracket.whitespace_after, sequence.rbracket.whitespace_before


def _edged(sequence: cst.List, elements: list[Any], opening: Space, closing: Space) -> cst.CSTNode:
    literal: Any = sequence
    if isinstance(literal, cst.Tuple):
        first, last = literal.lpar[-1], literal.rpar[0]
        return literal.with_changes(
            elements=elements,
            lpar=[*literal.lpar[:-1], first.with_changes(whitespace_after=opening)],
            rpar=[last.with_changes(whitespace_before=closing), *literal.rpar[1:]],
        )
    left, right = ("lbrace", "rbrace") if isinstance(literal, cst.Set) else ("lbracket", "rbracket")
    edges: dict[str, Any] = {
        left: getattr(literal, left).with_changes(whitespace_after=opening),
        right: getattr(literal, right).with_changes(whitespace_before=closing),
    }
    return sequence.with_changes(elements=elements, **edges)


def _bare(space: Space) -> Space:
    """Give a line break of the same indentation without comments and empty lines."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return space


def _kept_comment(space: Space, like: Space) -> Space:
    """Give white space that ends as another, with the comments that belong to what precedes it."""
    if not isinstance(space, cst.ParenthesizedWhitespace) or not (
        space.first_line.comment or any(line.comment for line in space.empty_lines)
    ):
        return like
    if isinstance(like, cst.ParenthesizedWhitespace):
        return space.with_changes(last_line=like.last_line, indent=like.indent)
    return space.with_changes(last_line=cst.SimpleWhitespace(_ending(space) + "    "))


def _followed(node: Any, space: Space) -> Any:
    comma = node.comma if isinstance(node.comma, cst.Comma) else cst.Comma()
    return node.with_changes(comma=comma.with_changes(whitespace_after=space))


def _listed(before: Sequence[Any], last: Any, added: Sequence[Any], fresh: Space) -> list[Any]:
    """Put elements behind the last one and hand its trailing comma, if any, on to them."""
    if not isinstance(last.comma, cst.Comma):
        return [*before, *(_followed(n, fresh) for n in (last, *added[:-1])), added[-1]]
    tail = last.comma.whitespace_after
    inner = [_followed(node, fresh) for node in added[:-1]]
    closing = added[-1].with_changes(comma=last.comma.with_changes(whitespace_after=_bare(tail)))
    return [*before, _followed(last, _kept_comment(tail, fresh)), *inner, closing]


def append_argument(call: cst.Call, *names: str, indent: int, width: int) -> cst.Call:
    """Append positional arguments, in the layout of the others.

    Args:
        indent: how far the statement is indented.
        width: how long the statement would be on one line, indentation included.
    """
    new = [cst.Arg(cst.parse_expression(name)) for name in names]
    opening, args = _appended(
        list(call.args), new, call.whitespace_before_args, indent=indent, width=width
    )
    return call.with_changes(args=args, whitespace_before_args=opening)


def append_parameter(function: cst.FunctionDef, *sources: str, indent: int) -> cst.FunctionDef:
    """Append parameters behind the last positional one, in the layout of the others."""
    new = [
        cst.parse_statement(f"def _({source}): ...").params.params[0]  # type: ignore[union-attr]
        for source in sources
    ]
    bare = function.with_changes(
        body=cst.SimpleStatementSuite([]),
        decorators=[],
        leading_lines=[],
        lines_after_decorators=[],
    )
    opening, params = _appended(
        list(function.params.params),
        new,
        function.whitespace_before_params,
        indent=indent,
        width=indent + len(code(bare).removesuffix(" pass")),
    )
    return function.with_changes(
        params=function.params.with_changes(params=params), whitespace_before_params=opening
    )


def _appended(
    old: list[Any], new: list[Any], opening: Space, *, indent: int, width: int
) -> tuple[Space, list[Any]]:
    """Append arguments or parameters, which libcst lays out alike, to a list of them."""
    *before, last = old
    lead = before[-1].comma.whitespace_after if before else opening
    fresh = _bare(lead) if isinstance(lead, cst.ParenthesizedWhitespace) else _SPACE
    if isinstance(last.comma, cst.Comma):
        return opening, _listed(before, last, new, fresh)
    # Without a trailing comma, what stands before the closing bracket hangs on the last one.
    after = "whitespace_after_arg" if isinstance(last, cst.Arg) else "whitespace_after_param"
    closing = getattr(last, after)
    bare = last.with_changes(**{after: cst.SimpleWhitespace("")})
    kept = [*before, _followed(bare, _kept_comment(closing, fresh))]
    inner = [*kept, *(_followed(node, fresh) for node in new[:-1])]
    spread = [opening, closing, *(node.comma.whitespace_after for node in before)]
    if not any(isinstance(space, cst.ParenthesizedWhitespace) for space in spread):
        if width + sum(len(code(node)) + 2 for node in new) <= _LINE_LENGTH or width > _LINE_LENGTH:
            return opening, [*inner, new[-1].with_changes(**{after: closing})]
        opening, closing = _line_break("    "), _line_break("")
    elif fresh is not _SPACE or not isinstance(closing, cst.ParenthesizedWhitespace):
        return opening, [*inner, new[-1].with_changes(**{after: _bare(closing)})]
    line = indent + 4 + sum(len(_uncomma(node)) + 2 for node in (*before, bare, *new)) - 2
    if line <= _LINE_LENGTH:
        return opening, [*inner, new[-1].with_changes(**{after: _bare(closing)})]
    lines = _line_break(_ending(closing) + "    ")
    kept = [*(_followed(node, lines) for node in before), _followed(bare, lines)]
    kept[-1] = _followed(bare, _kept_comment(closing, lines))
    inner = [_followed(node, lines) for node in new[:-1]]
    return opening, [*kept, *inner, _followed(new[-1], _bare(closing))]


def _ending(space: Space) -> str:
    return space.last_line.value if isinstance(space, cst.ParenthesizedWhitespace) else ""


def _uncomma(node: cst.CSTNode) -> str:
    return code(node).rstrip(", ")


def guarded(test: str, body: Sequence[cst.BaseStatement]) -> cst.If:
    """Wrap statements in ``if test:``; the first one's comments stay above the ``if``."""
    first = cast(cst.SimpleStatementLine, body[0])
    return cst.If(
        test=cst.parse_expression(test),
        body=cst.IndentedBlock([first.with_changes(leading_lines=[]), *body[1:]]),
        leading_lines=first.leading_lines,
    )


def only(found: Sequence[ItemT], error: Callable[[int], Exception]) -> ItemT:
    """Give the one element, or raise the error made for the number found."""
    if len(found) != 1:
        raise error(len(found))
    return found[0]
