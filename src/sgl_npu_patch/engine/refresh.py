"""Bring what an older version of this tool inserted into today's form.

The template of the older form is the pattern: its placeholders match whatever expression stands
there, the same one everywhere, and all else must be alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import libcst as cst

from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.text.template import older_forms, template

NodeT = TypeVar("NodeT", bound=cst.CSTNode)

_PLACEHOLDER = "placeholder_of_a_template_"


def refresh(root: NodeT, templates: str) -> NodeT:
    """Replace every older form of an insertion below a node; return the very node if none is.

    Args:
        templates: the Python package that holds the templates.
    """
    for form in older_forms(templates):
        name = form.partition("@")[0]
        pattern = _pattern(templates, form)
        for step in read.steps(root):
            there = step.block[step.index : step.index + len(pattern)]
            values: dict[str, str] = {}
            if len(there) == len(pattern) and all(
                _matches(old, node, values) for old, node in zip(pattern, there, strict=True)
            ):
                today = template(templates, name).substitute(values)
                return refresh(_replace(root, there, today), templates)
    return root


@cache
def _pattern(templates: str, form: str) -> Sequence[read.Statement]:
    text = template(templates, form)
    names = {match["named"] or match["braced"] for match in text.pattern.finditer(text.template)}
    return edit.block(text.substitute({name: _PLACEHOLDER + name for name in names if name}))


def _matches(pattern: object, node: object, values: dict[str, str]) -> bool:
    if isinstance(pattern, cst.Name) and pattern.value.startswith(_PLACEHOLDER):
        text = read.code(node) if isinstance(node, cst.BaseExpression) else ""
        return text != "" and values.setdefault(pattern.value[len(_PLACEHOLDER) :], text) == text
    if isinstance(pattern, cst.CSTNode) and isinstance(node, cst.CSTNode):
        return read.alike(pattern, node, lambda one, other: _matches(one, other, values))
    return pattern == node


def _replace(root: NodeT, there: Sequence[cst.BaseStatement], text: str) -> NodeT:
    first, *rest = there
    blank = any(line.comment is None for line in getattr(first, "leading_lines", ()))
    for statement in rest:
        root = edit.insert(root, statement, instead=[])
    return edit.insert(root, first, instead=edit.block(text, blank=blank))
