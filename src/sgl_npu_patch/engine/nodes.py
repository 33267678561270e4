"""Read and edit libcst nodes: the few questions and changes that codemods are made of.

libcst's own matchers are not used: importing them takes as long as a whole run of this tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import libcst as cst

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
    operator = names.get(type(target.operator), "")
    return node.left, operator, target.comparator


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """List a function's positional parameters in order."""
    return [*function.params.posonly_params, *function.params.params]


def code(node: cst.CSTNode) -> str:
    """Print a node as one line of source for messages and comparisons."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def block(source: str, *, blank: bool = False) -> list[Statement]:
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


def append_to_list(node: NodeT, value: str, line: str) -> NodeT:
    """Append a string to a list, tuple or set literal in the layout and quotes of the others.

    Args:
        node: the literal; it holds at least one plain string.
        line: the source line on which it starts, to see whether it stays short enough.
    """
    sequence = cast(cst.List, node)
    last = sequence.elements[-1]
    text = cast(cst.SimpleString, last.value).value
    quote = text[-1]
    element = cst.SimpleString(f"{quote}{value}{quote}")
    spread = _spread(sequence)
    if spread is None and len(line) + len(value) + 4 > _LINE_LENGTH >= len(line):
        spread = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
        old = [e.with_changes(comma=cst.Comma(whitespace_after=spread)) for e in sequence.elements]
        closing = cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True))
        return cast(
            NodeT,
            sequence.with_changes(
                elements=[*old, cst.Element(element, comma=closing)],
                lbracket=cst.LeftSquareBracket(whitespace_after=spread),
            ),
        )
    between = sequence.elements[-2].comma if len(sequence.elements) > 1 else None
    if not isinstance(between, cst.Comma):
        between = cst.Comma(whitespace_after=spread or cst.SimpleWhitespace(" "))
    elif isinstance(last.comma, cst.Comma) and _comment(last.comma):
        # A comment behind the last entry belongs to it, not to the new one.
        between = last.comma.with_changes(
            whitespace_after=_same_indent(last.comma.whitespace_after, between.whitespace_after)
        )
    elif _comment(between):
        between = cst.Comma(
            whitespace_after=cast(
                cst.ParenthesizedWhitespace, between.whitespace_after
            ).with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        )
    closing_comma = last.comma
    if isinstance(closing_comma, cst.Comma) and _comment(closing_comma):
        closing_comma = closing_comma.with_changes(
            whitespace_after=cast(
                cst.ParenthesizedWhitespace, closing_comma.whitespace_after
            ).with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        )
    return cast(
        NodeT,
        sequence.with_changes(
            elements=[
                *sequence.elements[:-1],
                last.with_changes(comma=between),
                cst.Element(element, comma=closing_comma),
            ]
        ),
    )


def _spread(sequence: cst.List) -> cst.ParenthesizedWhitespace | None:
    bracket = getattr(sequence, "lbracket", None) or getattr(sequence, "lbrace", None)
    space = getattr(bracket, "whitespace_after", None)
    return space if isinstance(space, cst.ParenthesizedWhitespace) else None


def _comment(comma: cst.Comma) -> bool:
    space = comma.whitespace_after
    return isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or any(line.comment for line in space.empty_lines)
    )


def _same_indent(
    space: cst.BaseParenthesizableWhitespace, like: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(
        like, cst.ParenthesizedWhitespace
    ):
        return space.with_changes(last_line=like.last_line, indent=like.indent)
    return space


def append_argument(call: cst.Call, *names: str, width: int) -> cst.Call:
    """Append positional arguments, in the layout of the others.

    Args:
        width: how long the call's argument line is now, indentation included.
    """
    return call.with_changes(
        args=_appended(
            list(call.args), [cst.Arg(cst.parse_expression(name)) for name in names], width
        )
    )


def append_parameter(function: cst.FunctionDef, *sources: str) -> cst.FunctionDef:
    """Append parameters behind the last positional one, in the layout of the others."""
    new = [
        cst.parse_statement(f"def _({source}): ...").params.params[0]  # type: ignore[union-attr]
        for source in sources
    ]
    params = list(function.params.params)
    return function.with_changes(
        params=function.params.with_changes(params=_appended(params, new, 0))
    )


def _appended(old: list[Any], new: list[Any], width: int) -> list[Any]:
    """Append arguments or parameters, which libcst lays out alike, to a list of them."""
    last = old[-1]
    between = old[-2].comma if len(old) > 1 else None
    if not isinstance(between, cst.Comma):
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(last.comma, cst.Comma):
        rest = [node.with_changes(comma=between) for node in (last, *new[:-1])]
        return [*old[:-1], *rest, new[-1].with_changes(comma=last.comma)]
    closing = getattr(last, "whitespace_after_arg", None)
    if not isinstance(closing, cst.ParenthesizedWhitespace):
        return [*old[:-1], last.with_changes(comma=between), *new]
    # The line break in front of the closing bracket hangs on the last argument.
    bare = [last.with_changes(whitespace_after_arg=cst.SimpleWhitespace("")), *new]
    added = sum(len(code(node)) + 2 for node in new)
    if width + added > _LINE_LENGTH >= width:
        return _one_a_line([*old[:-1], *bare], closing)
    rest = [node.with_changes(comma=between) for node in bare[:-1]]
    return [*old[:-1], *rest, bare[-1].with_changes(whitespace_after_arg=closing)]


def _one_a_line(args: list[cst.Arg], closing: cst.ParenthesizedWhitespace) -> list[cst.Arg]:
    indent = cst.SimpleWhitespace(closing.last_line.value + "    ")
    spread = cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True, last_line=indent))
    lines = [arg.with_changes(comma=spread) for arg in args]
    lines[-1] = lines[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
    return lines


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
