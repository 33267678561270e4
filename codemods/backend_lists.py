"""Add "ascend" to the attention backends that deterministic inference accepts.

**Why**: without the entry the server refuses `--attention-backend ascend`, the only attention
backend that an NPU has, together with `--enable-deterministic-inference`.

**Where**: the list `DETERMINISTIC_ATTENTION_BACKEND_CHOICES`, in `srt/server_args.py` or, from
0.5.20 on, `srt/arg_groups/choices.py`.

**Upstream**: pull request 21197 (0.5.13) has the same entry; the list then contains "ascend".

**Ends when**: no release before 0.5.13 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods._places import ASCEND
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.view import View

CHOICES = "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"


def targets(view: View) -> Sequence[Target]:
    """Find the list."""
    return (Target(view.find_assignment(CHOICES), has_ascend, add_ascend),)


def has_ascend(node: cst.CSTNode) -> bool:
    """Tell whether a list of strings holds "ascend".

    Raises:
        AnchorError: the value is not a literal list of strings, or holds it more than once.
    """
    values = nodes.strings(_value(node))
    if not values or values.count(ASCEND) > 1:
        raise AnchorError(
            sought=f'"{ASCEND}" in the list',
            expected='a literal list of strings that holds "ascend" at most once',
            found=nodes.code(_value(node) or node)[:80],
            action="write the list as a literal, or add the entry by hand",
        )
    return ASCEND in values


def add_ascend(node: cst.CSTNode) -> cst.CSTNode:
    """Append "ascend" in the layout of the other entries."""
    value = _value(node)
    assert value is not None
    return nodes.swap(node, value, nodes.append_to_list(value, ASCEND, nodes.code(node)))


def _value(node: cst.CSTNode) -> cst.BaseExpression | None:
    pair = nodes.assigned(node)
    return pair[1] if pair else None


SEAM = Seam(targets=targets, needs=("radix_cache",), alike=True)
