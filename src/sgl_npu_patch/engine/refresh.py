"""Bring what an older version of this tool inserted into the current form.

The template of the older form is the pattern: its placeholders match whatever expression stands
there, the same one everywhere, and all else must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import length, match_block
from sgl_npu_patch.engine.text.template import older_forms, template

NodeT = TypeVar("NodeT", bound=cst.CSTNode)


def refresh(root: NodeT, templates: str) -> NodeT:
    """Replace every older form of an insertion below a node; return the very node if none is.

    Args:
        templates: the Python package that holds the templates.
    """
    for form in older_forms(templates):
        pattern, name = template(templates, form).template, form.partition("@")[0]
        for step in read.steps(root):
            there = step.block[step.index : step.index + length(pattern)]
            found = match_block(pattern, there)
            if found is not None:
                values = {key: read.code(node) for key, node in found.items()}
                today = template(templates, name).substitute(values)
                return refresh(_replace(root, there, today), templates)
    return root


def _replace(root: NodeT, there: Sequence[cst.BaseStatement], text: str) -> NodeT:
    first, *rest = there
    blank = any(line.comment is None for line in getattr(first, "leading_lines", ()))
    for statement in rest:
        root = edit.insert(root, statement, instead=[])
    return edit.insert(root, first, instead=edit.block(text, blank=blank))
