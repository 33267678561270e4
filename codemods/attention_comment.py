"""Remove the claim that fused attention takes several requests in any CANN version.

**Why**: a string statement in the prefill branch claims what holds only for some versions of CANN
and would mislead readers of the patched file. "FIA will support multi-bs in the later version" is
another statement and stays.

**Where**: a direct child of the fused prefill branch of `forward_extend`, 0.5.12 and 0.5.12.post1.

**Upstream**: pull request 21197 (0.5.13) removed it. From 0.5.14 on it is back, under
`_can_use_tnd`, where it stays.

**Ends when**: 0.5.12 is not patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream import attention
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target
from sgl_npu_patch.engine.view import View

CLAIM = "FIA supports multi-bs in the current version of CANN"


def premise(view: View) -> NotNeeded | None:
    """Do nothing where the claim does not stand in the branch."""
    spot = attention.prefill_branch(view)
    if is_silent(spot.node):
        return NotNeeded("the claim is not in the branch: removed, or never there", (spot.site,))
    return None


def targets(view: View) -> Sequence[Target]:
    """Find the branch."""
    return (Target(attention.prefill_branch(view), remove_claim),)


def is_silent(node: cst.CSTNode) -> bool:
    """Report whether the branch is free of the claim."""
    return not _claims(node)


def remove_claim(node: cst.CSTNode) -> cst.CSTNode:
    """Remove the statement; comments and empty lines above it stay."""
    assert isinstance(node, cst.If)
    assert isinstance(node.body, cst.IndentedBlock)
    claims, kept, above = _claims(node), list[cst.BaseStatement](), list[cst.EmptyLine]()
    for statement in node.body.body:
        assert isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        if statement in claims:
            above += statement.leading_lines
        elif above:
            kept.append(statement.with_changes(leading_lines=[*above, *statement.leading_lines]))
            above = []
        else:
            kept.append(statement)
    footer = [*above, *node.body.footer]
    return node.with_changes(body=node.body.with_changes(body=kept, footer=footer))


def _claims(branch: cst.CSTNode) -> list[cst.BaseStatement]:
    assert isinstance(branch, cst.If)
    return [
        statement
        for statement in branch.body.body
        if isinstance(statement, cst.SimpleStatementLine)
        and (expression := read.small(statement, cst.Expr)) is not None
        and (read.string(expression.value) or "").strip() == CLAIM
    ]


SEAM = Seam(targets=targets, premise=premise)
