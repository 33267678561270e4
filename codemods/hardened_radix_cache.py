"""Accept DeepSeek models on ascend where the tree says that ascend is ready for them.

**Why**: the list that decides for which backends the radix cache stays on has "ascend", but
DeepSeek models are refused by another list of backends, whose error names the first one.

**Where**: the literal list in `_handle_deterministic_inference` (.. 0.5.15.post1), or the local
variable there that holds it (0.5.16): "ascend" is appended.

**Upstream**: 0.5.17 compares with `RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND` instead.

**Ends when**: no release before 0.5.17 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods import _places
from sgl_npu_patch.codemods.backend_lists import find_list, has_ascend
from sgl_npu_patch.codemods.radix_cache import SUPPORTED, Refusal, refusals
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError, Located
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target
from sgl_npu_patch.engine.view import View


def premise(view: View) -> NotNeeded | None:
    """Leave trees alone that do not say that ascend is ready, or that refuse by no other list."""
    if _places.native_branch(view) is None:
        return NotNeeded(
            "the tree has no adaptation of upstream's whose claim could be kept",
            (view.find_function(_places.ENABLE).site,),
        )
    supported = find_list(view, SUPPORTED)
    with Located(supported.site):
        # Where prefill is ready the series deterministic appends it: then it is claimed too.
        if not has_ascend(supported.node) and _places.ignores_prefix(view) is not None:
            return NotNeeded(f'{SUPPORTED} does not have "ascend"', (supported.site,))
    spot = _places.handler(view)
    with Located(spot.site):
        if refusals(spot.function):
            return None
    return NotNeeded("no list of its own refuses models", (spot.site, supported.site))


def targets(view: View) -> Sequence[Target]:
    """Find the handler."""
    return (Target(_places.handler(view), accept),)


def accept(node: cst.CSTNode) -> cst.CSTNode:
    """Append "ascend" to the list by which models are refused."""
    assert isinstance(node, cst.FunctionDef)
    refusing = [refusal for refusal in refusals(node) if not refusal.accepts_ascend]
    if not refusing:
        return node
    refusal = nodes.only(
        [each for each in refusing if len(refusing) == 1 and _is_of_deepseek(each)],
        lambda _: AnchorError(
            sought=f"the refusal of DeepSeek models in {node.name.value}",
            expected="one list of its own, in an if that asks for DeepSeek models",
            found="; ".join(nodes.code(each.backends) for each in refusing)[:80],
            action="append the entry by hand to the list that refuses DeepSeek models",
        ),
    )
    here = [*nodes.find_all(refusal.step.node, cst.Name)]
    others = [
        name
        for name in nodes.find_all(node, cst.Name)
        if name.value == refusal.name and not any(name is inner for inner in here)
    ]
    if refusal.name and len(others) != 1:
        raise AnchorError(
            sought=f"{refusal.name} in {node.name.value}",
            expected="a list that is set once and that only the refusal uses",
            found=f"{len(others)} other uses",
            action="append the entry by hand if every use means it",
        )
    longer = nodes.append_to_list(refusal.backends, _places.ASCEND, 0)
    return nodes.swap(node, refusal.backends, longer)


def _is_of_deepseek(refusal: Refusal) -> bool:
    return any(
        isinstance(outer, cst.If) and inside and "deepseek" in nodes.code(outer.test).lower()
        for outer, inside in refusal.step.above
    )


SEAM = Seam(targets=targets, premise=premise)
