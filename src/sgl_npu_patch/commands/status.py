"""Show what each seam finds in a tree."""

from __future__ import annotations

from typing import Annotated

from sgl_npu_patch.commands import options, plans
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import planned


def run(
    path: options.Tree = ".",
    only: options.Only = None,
    skip: options.Skip = None,
    strict: options.Strict = False,
    rev: options.Revision = None,
    output: Annotated[str, options.format_option("plan")] = "text",
) -> int:
    """Show what each seam finds in a tree; write nothing."""
    with planned(path, rev, only, skip) as (tree, plan):
        write(*plans.report(tree, plan, output))
    return plans.exit_code(plan, strict=strict)
