"""Edit libcst nodes: the few changes that codemods are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import libcst as cst

from sgl_npu_patch.engine.cst.read import (
    NodeT,
    Statement,
    Step,
    alike,
    code,
    fields,
    find_all,
    walk,
)
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.text.excerpt import excerpt, parting


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
            expected, found = parting(code(wanted[-1]), code(other))
            if alike(other, wanted[-1]):
                expected = f"right {'behind' if after else 'before'} {excerpt(code(step.node))}"
                found = f"elsewhere in the same block: {found}"
            raise AnchorError(
                sought="what this tool inserts here",
                expected=expected,
                found=found,
                action="take that statement out, or restore what this tool wrote, and apply again",
            )
    if after:
        return insert(root, step.node, after=wanted)
    return insert(root, step.node, before=wanted)


def _asks_the_same(a: cst.CSTNode, b: cst.CSTNode) -> bool:
    """Report whether two statements are ifs of which one asks for what the other does, or more."""
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
    for name in fields(type(node)):
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


def guarded(test: str, body: Sequence[cst.BaseStatement]) -> cst.If:
    """Wrap statements in ``if test:``; the first one's comments stay above the ``if``."""
    first = cast(cst.SimpleStatementLine, body[0])
    return cst.If(
        test=cst.parse_expression(test),
        body=cst.IndentedBlock([first.with_changes(leading_lines=[]), *body[1:]]),
        leading_lines=first.leading_lines,
    )
