"""Append to lists, calls and signatures in the layout of what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import libcst as cst

from sgl_npu_patch.engine.cst.read import NodeT, code

_LINE_LENGTH = 88
"""That of black; a longer line would be reported as badly formatted."""


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
    """Return the white space behind the opening and before the closing bracket, if any."""
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
    """Return a line break of the same indentation without comments and empty lines."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return space


def _kept_comment(space: Space, like: Space) -> Space:
    """Return white space that ends as another, with the comments of what precedes it."""
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
