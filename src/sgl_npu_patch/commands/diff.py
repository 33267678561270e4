"""Print the change as a unified diff."""

from __future__ import annotations

import sys

from sgl_npu_patch.commands import options, plans
from sgl_npu_patch.commands.output import write, write_error
from sgl_npu_patch.commands.trees import planned


def run(
    path: options.Tree = ".",
    only: options.Only = None,
    skip: options.Skip = None,
    rev: options.Revision = None,
) -> int:
    """Print the change as a unified diff for `git apply` or `patch -p1`; write nothing."""
    from sgl_npu_patch.engine.plan import prove

    with planned(path, rev, only, skip) as (tree, plan):
        prove(plan)
        if plan.conflicts:
            write_error(plans.text_report(tree, plan, sys.stderr))
        write(plans.diff(tree, plan))
    return plans.exit_code(plan)
