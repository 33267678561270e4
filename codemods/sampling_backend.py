"""Leave the sampling backend "ascend" as it is in deterministic mode.

**Why**: the handler turns every sampling backend into "pytorch"; the fused Ascend path, once it
draws by seed (seam sampler), need not be given up.

**Where**: the assignment with its warning in the handler (.. 0.5.14), or
`_deterministic_sampling_backend` in `srt/arg_groups/overrides.py` (0.5.15 ..).

**Upstream**: pull request 21197 (0.5.13): a guard around both, equal to ours.

**Ends when**: no release before 0.5.13 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods import _places
from sgl_npu_patch.codemods import sampler as _sampler
from sgl_npu_patch.codemods._places import Branch
from sgl_npu_patch.engine import nodes
from sgl_npu_patch.engine.errors import AnchorError, Located
from sgl_npu_patch.engine.nodes import Step
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target, Withheld
from sgl_npu_patch.engine.view import View

OVERRIDE = "_deterministic_sampling_backend"
ATTRIBUTE = "sampling_backend"


def premise(view: View) -> NotNeeded | Withheld | None:
    """Do nothing where "ascend" is no sampling backend or cannot draw faithfully by seed."""
    verdict = _sampler.premise(view)
    if isinstance(verdict, Withheld):
        return Withheld(
            'the sampling backend stays "pytorch" in deterministic mode: ' + verdict.reason,
            verdict.sites,
        )
    return verdict


def targets(view: View) -> Sequence[Target]:
    """Find the function that sets the sampling backend."""
    if view.has(OVERRIDE, "function"):
        return (Target(view.find_function(OVERRIDE), add_guard),)
    spot = _places.handler(view)
    if not any(_forces(step) for step in nodes.steps(spot.node)):
        with Located(spot.site):
            held = [
                (part, branch)
                for part, branch in _places.parts(view, spot)
                if any(_forces(step) for step in branch.steps())
            ]
        if len(held) == 1:
            part, branch = held[0]
            return (Target(part, lambda node: _guard(node, branch)),)
    return (Target(spot, add_guard),)


def keeps_ascend(node: cst.CSTNode) -> bool:
    """Tell whether the backend is set to "pytorch" only where it is not "ascend"."""
    assert isinstance(node, cst.FunctionDef)
    if node.name.value == OVERRIDE:
        return any(_differs(test) for test in nodes.find_all(node, cst.Comparison))
    found = [step for step in nodes.steps(node) if _forces(step)]
    return bool(found) and all(
        _warns(step.next)
        and isinstance(above := step.above[-1][0], cst.If)
        and step.above[-1][1]
        and _differs(above.test)
        for step in found
    )


def add_guard(node: cst.CSTNode) -> cst.CSTNode:
    """Put the assignment and its warning under ``if ... != "ascend"``."""
    assert isinstance(node, cst.FunctionDef)
    return node if keeps_ascend(node) else _guard(node, _places.enabled_branch(node))


def _guard(node: cst.CSTNode, branch: Branch) -> cst.CSTNode:
    if keeps_ascend(node):
        return node
    found = [step for step in nodes.steps(node) if _forces(step)]
    step = nodes.only(
        found,
        lambda count: AnchorError(
            sought='an assignment of "pytorch" to the sampling backend',
            expected="exactly one in the handler",
            found=str(count),
            action="see where the sampling backend is set now and adapt this codemod",
        ),
    )
    if not branch.runs(step) or not _warns(step.next):
        raise AnchorError(
            sought="the assignment of the sampling backend",
            expected="a direct child of the if, followed by its logger.warning",
            found=nodes.code(step.next)[:60] if step.next else "nothing behind it",
            action="guard the assignment and its warning by hand",
        )
    pair = nodes.assigned(step.node)
    assert pair is not None
    assert step.next is not None
    guard = nodes.guarded(f'{pair[0]} != "{_places.ASCEND}"', (step.node, step.next))
    return nodes.insert(nodes.insert(node, step.next, instead=[]), step.node, instead=[guard])


def _forces(step: Step) -> bool:
    pair = nodes.assigned(step.node)
    return (
        pair is not None
        and pair[0].endswith(f".{ATTRIBUTE}")
        and nodes.string(pair[1]) == "pytorch"
    )


def _warns(node: cst.CSTNode | None) -> bool:
    call = nodes.statement_call(node)
    return call is not None and nodes.last_name(call.func) == "warning"


def _differs(test: cst.CSTNode) -> bool:
    sides = nodes.compared(test)
    return (
        sides is not None
        and nodes.last_name(sides[0]) == ATTRIBUTE
        and sides[1] == "!="
        and nodes.string(sides[2]) == _places.ASCEND
    )


SEAM = Seam(targets=targets, premise=premise, needs=("sampler",), alike=True)
