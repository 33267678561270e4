"""Match libcst nodes with patterns that read like the code that they match.

A pattern is an expression or one or more statements. In it ``$name`` stands for any expression,
the same one wherever the name stands again, and ``$_`` for any at all. ``...`` stands for whatever
arguments follow in a call, and for whatever statements follow in a block. Layout, comments, the
quotes of strings and the annotation of an assigned variable do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import libcst as cst

from sgl_npu_patch.engine.cst import read

Found = dict[str, cst.BaseExpression]
"""What the placeholders stand for, by name."""

_PLACEHOLDER = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_NAMED = "placeholder_of_a_pattern_"


def match(pattern: str, node: cst.CSTNode | None) -> Found | None:
    """Return what the placeholders stand for if a node is what the pattern says, else None."""
    if isinstance(node, cst.BaseExpression):
        expression = read.small(_parsed(pattern)[0], cst.Expr)
        assert expression is not None, f"{pattern} is no expression"
        found: Found = {}
        return found if _fits(expression.value, node, found) else None
    return match_block(pattern, [node]) if node is not None else None


def match_block(pattern: str, nodes: Sequence[cst.CSTNode]) -> Found | None:
    """Match a pattern of statements with as many statements; see `match`."""
    found: Found = {}
    return found if _fit(_parsed(pattern), nodes, found) else None


def match_any(patterns: Sequence[str], node: cst.CSTNode | None) -> Found | None:
    """Return what `match` does for the first of some patterns that a node fits."""
    return next((found for p in patterns if (found := match(p, node)) is not None), None)


def find(patterns: Sequence[str], root: cst.CSTNode) -> list[tuple[read.Step, Found]]:
    """List the statements inside a node that fit one of some patterns."""
    pairs = ((step, match_any(patterns, step.node)) for step in read.steps(root))
    return [(step, found) for step, found in pairs if found is not None]


def length(pattern: str) -> int:
    """Count the statements of a pattern."""
    return len(_parsed(pattern))


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> Sequence[cst.CSTNode]:
    return cst.parse_module(_PLACEHOLDER.sub(rf"{_NAMED}\1\2", pattern)).body


def _fits(pattern: object, node: object, found: Found) -> bool:
    if isinstance(pattern, cst.Name) and pattern.value.startswith(_NAMED):
        name = pattern.value[len(_NAMED) :]
        if not isinstance(node, cst.BaseExpression):
            return False
        return name == "_" or read.alike(found.setdefault(name, node), node)
    if isinstance(pattern, cst.SimpleString) and isinstance(node, cst.SimpleString):
        return pattern.evaluated_value == node.evaluated_value
    if isinstance(pattern, cst.Assign) and isinstance(node, cst.AnnAssign):
        targets = [target.target for target in pattern.targets]
        return _fit([*targets, pattern.value], [node.target, node.value], found)
    if isinstance(pattern, cst.CSTNode):
        return type(pattern) is type(node) and all(
            _fits(getattr(pattern, name), getattr(node, name), found)
            for name in read.fields(type(pattern))
        )
    if isinstance(pattern, list | tuple) and isinstance(node, list | tuple):
        return _fit(pattern, node, found)
    return pattern == node


def _fit(patterns: Sequence[object], nodes: Sequence[object], found: Found) -> bool:
    open_ended = bool(patterns) and _is_ellipsis(patterns[-1])
    fixed = patterns[:-1] if open_ended else patterns
    if len(nodes) < len(fixed) or (len(nodes) > len(fixed) and not open_ended):
        return False
    return all(_fits(one, other, found) for one, other in zip(fixed, nodes, strict=False))


def _is_ellipsis(pattern: object) -> bool:
    if isinstance(pattern, cst.Arg):
        return isinstance(pattern.value, cst.Ellipsis) and pattern.keyword is None
    expression = read.small(pattern, cst.Expr) if isinstance(pattern, cst.CSTNode) else None
    return expression is not None and isinstance(expression.value, cst.Ellipsis)
