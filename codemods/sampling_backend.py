"""Leave the sampling backend "ascend" as it is in deterministic mode.

**Why**: `_handle_deterministic_inference` (*the handler*) replaces every sampling backend by
"pytorch". The fused Ascend path samples by seed once the seam sampler is applied, and need not be
given up.

**Where**: the assignment with its warning in the handler (to 0.5.14), or
`_deterministic_sampling_backend` in `srt/arg_groups/overrides.py` (from 0.5.15).

**Upstream**: pull request 21197 (0.5.13) has the same guard around both.

**Ends when**: no release before 0.5.13 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods import sampler as _sampler
from sgl_npu_patch.codemods.upstream import handler, mode, symbols
from sgl_npu_patch.codemods.upstream.handler import Branch
from sgl_npu_patch.codemods.upstream.symbols import HANDLER, OVERRIDE
from sgl_npu_patch.codemods.upstream.symbols import SAMPLING_BACKEND as ATTRIBUTE
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import match, match_any
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError, Located
from sgl_npu_patch.engine.seam import NotNeeded, Seam, Target, Withheld
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import View


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
    spot = HANDLER.find(view)
    if OVERRIDE.is_in(view):
        with Located(spot.site):
            _require_one_setter(spot.node)
        return (Target(OVERRIDE.find(view), add_guard),)
    if not any(_forces(step) for step in read.steps(spot.node)):
        with Located(spot.site):
            held = [
                (part, branch)
                for part, branch in handler.parts(view, spot)
                if any(_forces(step) for step in branch.steps())
            ]
        if len(held) == 1:
            part, branch = held[0]
            return (Target(part, lambda node: _guard(node, branch)),)
    return (Target(spot, add_guard),)


def keeps_ascend(node: cst.CSTNode) -> bool:
    """Report whether the backend is set to "pytorch" only where it is not "ascend"."""
    assert isinstance(node, cst.FunctionDef)
    if node.name.value in OVERRIDE.names:
        given = [step for step in read.steps(node) if _gives_backend(step.node)]
        return bool(given) and all(any(map(_guarded_by_ascend, step.above)) for step in given)
    return _keeps(node, handler.enabled_branch(node))


def _require_one_setter(handler: cst.CSTNode) -> None:
    """Insist that the handler leaves the sampling backend to the function that overrides it."""
    for step in read.steps(handler):
        if _sets(step.node):
            raise AnchorError(
                sought=f"what sets the sampling backend beside {OVERRIDE}",
                expected="nothing in the handler, which that function is for",
                found=excerpt(read.code(step.node), ATTRIBUTE),
                action=f"take the assignment out, or move it into {OVERRIDE}",
            )


def _gives_backend(node: cst.CSTNode) -> bool:
    """Report whether a statement of the override returns a sampling backend."""
    returned = read.small(node, cst.Return)
    return returned is not None and any(
        read.string(text) == ATTRIBUTE for text in read.find_all(returned, cst.SimpleString)
    )


def _guarded_by_ascend(outer: tuple[cst.CSTNode, bool]) -> bool:
    """Report whether a block runs only where the sampling backend is not "ascend"."""
    node, first = outer
    tests = [node.test] if isinstance(node, cst.If) and first else []
    while tests:
        test = tests.pop()
        if _differs(test):
            return True
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
            tests += [test.left, test.right]
    return False


def _keeps(node: cst.CSTNode, branch: Branch) -> bool:
    found = [step for step in read.steps(node) if _sets(step.node)]
    if len(found) != 1 or found[0].next is None:
        return False
    (step,) = found
    inside = next(
        (i for i, (n, first) in enumerate(step.above) if n is branch.node and first), None
    )
    if inside is None:
        return False
    guards = step.above[inside + 1 :]
    top = guards[0][0] if guards else step.node
    if not any(top is statement for statement in branch.body):
        return False
    if _chooses(step):
        return not guards and _guards_warning(step.next)
    return (
        _forces(step)
        and _warns(step.next)
        and bool(guards)
        and all(isinstance(g, cst.If) and first and _differs(g.test) for g, first in guards)
    )


def add_guard(node: cst.CSTNode) -> cst.CSTNode:
    """Put the assignment and its warning under ``if ... != "ascend"``."""
    assert isinstance(node, cst.FunctionDef)
    return node if keeps_ascend(node) else _guard(node, handler.enabled_branch(node))


def _guard(node: cst.CSTNode, branch: Branch) -> cst.CSTNode:
    assert isinstance(node, cst.FunctionDef)
    if _keeps(node, branch):
        return node
    found = [step for step in read.steps(node) if _sets(step.node)]
    step = read.only(
        found,
        lambda count: AnchorError(
            sought='an assignment of "pytorch" to the sampling backend',
            expected="exactly one in the handler, and nothing else that sets it",
            found=f"{count}: " + "; ".join(excerpt(read.code(s.node), ATTRIBUTE) for s in found)
            if found
            else str(count),
            action='return it only where the sampling backend is not "ascend"'
            if node.name.value in OVERRIDE.names
            else "set it once, in a statement that always and only runs with the branch",
        ),
    )
    if not (_forces(step) or _chooses(step)):
        raise AnchorError(
            sought="the assignment of the sampling backend",
            expected='"pytorch", or a choice between "ascend" and "pytorch"',
            found=excerpt(read.code(step.node)),
            action='assign "pytorch" directly in the branch, and warn in the next statement',
        )
    if not branch.runs(step) or not _warns(step.next):
        raise AnchorError(
            sought="the assignment of the sampling backend",
            expected="a direct child of the if, followed by its logger.warning",
            found=excerpt(read.code(step.next)) if step.next else "nothing behind it",
            action='assign "pytorch" directly in the branch, and warn in the next statement',
        )
    pair = read.assigned(step.node)
    assert pair is not None
    assert step.next is not None
    forced = step.node
    if _chooses(step):
        # The same choice, but with the warning only where it is true.
        forced = edit.swap(step.node, pair[1], cst.SimpleString('"pytorch"'))
    guard = edit.guarded(f'{pair[0]} != "{symbols.ASCEND}"', (forced, step.next))
    return edit.insert(edit.insert(node, step.next, instead=[]), step.node, instead=[guard])


def _forces(step: Step) -> bool:
    return match(f'$args.{ATTRIBUTE} = "pytorch"', step.node) is not None


def _chooses(step: Step) -> bool:
    """Report whether an assignment keeps "ascend" and turns everything else into "pytorch"."""
    return match_any(_CHOICES, step.node) is not None


_BACKEND = f"$args.{ATTRIBUTE}"
_CHOICES = tuple(
    form
    for kept in (f'"{symbols.ASCEND}"', _BACKEND)
    for form in (
        f'{_BACKEND} = {kept} if {_BACKEND} == "{symbols.ASCEND}" else "pytorch"',
        f'{_BACKEND} = "pytorch" if {_BACKEND} != "{symbols.ASCEND}" else {kept}',
    )
)


def _sets(node: cst.CSTNode) -> bool:
    """Report whether a plain statement sets the sampling backend, by whatever means."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    stored = any(
        attribute.attr.value == ATTRIBUTE
        for target in read.targets(node)
        for attribute in read.find_all(target, cst.Attribute)
    )
    return stored or any(
        (arg.keyword is not None and arg.keyword.value == ATTRIBUTE)
        or (read.last_name(call.func) != "getattr" and read.string(arg.value) == ATTRIBUTE)
        for call in read.find_all(node, cst.Call)
        for arg in call.args
    )


def _guards_warning(node: cst.CSTNode | None) -> bool:
    found = match("if $test:\n    $_.warning(...)\n", node)
    return found is not None and _differs(found["test"])


def _warns(node: cst.CSTNode | None) -> bool:
    return match("$_.warning(...)\n", node) is not None


def _differs(test: cst.CSTNode) -> bool:
    forms = [f'{owner}{ATTRIBUTE} != "{symbols.ASCEND}"' for owner in ("$_.", "")]
    return match_any(forms, test) is not None


SEAM = Seam(targets=targets, premise=premise, needs=("sampler",), adapted=mode.is_adapted)
