"""Keep the radix cache on for ascend where prefill reads it, and off where it does not.

**Why**: up to 0.5.11 the fused prefill branch attends to the new keys and values only, so that a
cached prefix is ignored and the answer is wrong. 0.5.12 replaced the branch by one call over the
paged cache, and the cache may stay on. `forward_extend` of the Ascend attention backend decides.

**Where**: the list `RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND` (from 0.5.4.post2), or a
comparison inside `_handle_deterministic_inference` (to 0.5.4.post1), *the handler*. 0.5.3.post2 and
.post3 have neither, and get one. From 0.5.13 to 0.5.16 another list in the handler refuses DeepSeek
models and gets "ascend" too.

**Upstream**: pull request 21197 (0.5.13) adds "ascend" to the first list, 0.5.17 drops the other.

**Ends when**: no release before 0.5.17 is patched any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from sgl_npu_patch.codemods.backend_lists import add_ascend, find_list, has_ascend
from sgl_npu_patch.codemods.upstream import attention, handler, mode, symbols
from sgl_npu_patch.codemods.upstream.gaps import DEEPSEEK_REFUSED
from sgl_npu_patch.codemods.upstream.handler import Branch
from sgl_npu_patch.codemods.upstream.symbols import ATTENTION_BACKEND, CHOICES, HANDLER, SUPPORTED
from sgl_npu_patch.codemods.upstream.symbols import DISABLE_RADIX_CACHE as DISABLED
from sgl_npu_patch.engine.cst import edit, layout, read
from sgl_npu_patch.engine.cst.pattern import find
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError, Located, Site
from sgl_npu_patch.engine.seam import Seam, Target, Withheld
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import Spot, View
from sgl_npu_patch.templates import render


def premise(view: View) -> Withheld | None:
    """Leave a gate closed for ascend where prefill would ignore what the cache holds."""
    unsafe = attention.ignores_prefix(view)
    if unsafe is None:
        return None
    if SUPPORTED.is_in(view):
        gate = find_list(view, SUPPORTED)
        with Located(gate.site):
            listed = has_ascend(gate.node)
        if listed:
            raise AnchorError(
                sought=str(SUPPORTED),
                expected='a list without "ascend", since prefill ignores a cached prefix',
                found='"ascend" in the list: answers would be wrong',
                where=(gate.site, unsafe),
                action="take the entry out, or bring prefill over the paged cache (0.5.12)",
            )
        spot = HANDLER.find(view)
        if inline_gate(view, spot) is None:
            raise AnchorError(
                sought=f"the use of {SUPPORTED}",
                expected=f"an if in {spot.block.name} that sets {DISABLED} by it",
                found="none",
                where=(spot.site, gate.site),
                action=f"add to it: if {ATTENTION_BACKEND} is not in the list, {DISABLED} = True",
            )
        return _withheld(unsafe, gate.site)
    spot = HANDLER.find(view)
    if inline_gate(view, spot) is None:
        return None
    return _withheld(unsafe, spot.site)


def targets(view: View) -> Sequence[Target]:
    """Find the list, or the handler that lacks a gate."""
    if SUPPORTED.is_in(view):
        return (Target(find_list(view, SUPPORTED), add_ascend), *repairs(view))
    spot = HANDLER.find(view)
    if attention.ignores_prefix(view) is None:
        raise AnchorError(
            sought=str(SUPPORTED),
            expected="the list that decides for which backends the radix cache stays on",
            found="no such list, although prefill reads the paged cache",
            where=(spot.site,),
            action="restore the list, and the if of the handler that asks it",
        )
    if not view.source(spot.path).binds("logger"):
        raise AnchorError(
            sought=f"logger in {spot.path.name}",
            expected="a module-level logger",
            found="none",
            where=(spot.site,),
            action="give the module a logger",
        )
    return (Target(spot, add_gate),)


def inline_gate(view: View, spot: Spot) -> Step | None:
    """Find the comparison in the handler that turns the radix cache off for ascend.

    The list that it may compare with is known to lack "ascend" where this is asked.
    """
    with Located(spot.site):
        found = _gate(handler.enabled_branch(spot.function))
        if found is None:
            gates = (_gate(branch) for _, branch in handler.parts(view, spot))
            found = next((gate for gate in gates if gate is not None), None)
        return found


def _gate(branch: Branch) -> Step | None:
    for step in branch.steps():
        sides = read.compared(step.node.test) if isinstance(step.node, cst.If) else None
        if sides is None or read.last_name(sides[0]) != ATTENTION_BACKEND:
            continue
        _, operator, right = sides
        single = read.string(right)
        kept = [single] if single is not None else read.strings(right)
        if read.dotted(right) in SUPPORTED.names:
            kept = []
        off = kept is not None and symbols.ASCEND not in kept and _disables(step)
        if off and operator in ("!=", "not in") and branch.runs(step):
            return step
    return None


def closes_for_ascend(node: cst.CSTNode) -> bool:
    """Report whether the handler has a gate of its own for ascend."""
    assert isinstance(node, cst.FunctionDef)
    branch = handler.enabled_branch(node)
    return any(
        _disables(step)
        and branch.runs(step)
        and (sides := read.compared(getattr(step.node, "test", None))) is not None
        and read.last_name(sides[0]) == ATTENTION_BACKEND
        and sides[1] == "=="
        and read.string(sides[2]) == symbols.ASCEND
        for step in branch.steps()
    )


def add_gate(node: cst.CSTNode) -> cst.CSTNode:
    """Turn the radix cache off for ascend, behind the check of the attention backend."""
    assert isinstance(node, cst.FunctionDef)
    if closes_for_ascend(node):
        return node
    branch = handler.enabled_branch(node)
    if any(
        read.last_name(found) == DISABLED
        for statement in branch.body
        for found in read.find_all(statement, cst.Attribute)
    ):
        raise AnchorError(
            sought=f"what sets {DISABLED} in {node.name.value}",
            expected="no gate, or a comparison of attention_backend with literals",
            found=f"another use of {DISABLED}",
            action=_close(branch),
        )
    found = [step.node for step in branch.steps() if branch.runs(step) and _checks_backend(step)]
    check = read.only(
        found,
        lambda count: AnchorError(
            sought="the check of the attention backend",
            expected="one if that raises ValueError for an unknown backend",
            found=str(count),
            action=_close(branch),
        ),
    )
    text = render("radix_gate", args=branch.args)
    return edit.insert(node, check, after=edit.block(text))


def _close(branch: Branch) -> str:
    test = f'{branch.args}.{ATTENTION_BACKEND} == "{symbols.ASCEND}"'
    return f"add to the branch: `if {test}: {branch.args}.{DISABLED} = True`"


def _checks_backend(step: Step) -> bool:
    return isinstance(step.node, cst.If) and any(
        read.last_name(name) in CHOICES.names for name in read.find_all(step.node, cst.Name)
    )


def _disables(step: Step) -> bool:
    return isinstance(step.node, cst.If) and any(
        inner.above == ((step.node, True),)
        for inner, _ in find([f"$_.{DISABLED} = True"], step.node)
    )


def _withheld(unsafe: Site, gate: Site) -> Withheld:
    return Withheld(
        "prefill with ASCEND_USE_FIA attends to the new tokens only and ignores a cached prefix, "
        "so the radix cache stays off on ascend; a chunk of a prompt would ignore the one before "
        "it, so the launch guards set --chunked-prefill-size to -1",
        (unsafe, gate),
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Name an ``if`` that raises for attention backends outside a literal list.

    ``name`` is the local variable that holds the list, empty if it stands in the test.
    """

    step: Step
    backends: cst.BaseExpression
    name: str

    @property
    def accepts_ascend(self) -> bool:
        """Report whether the list has "ascend"."""
        return symbols.ASCEND in (read.strings(self.backends) or ())


def refusals(function: cst.FunctionDef) -> list[Refusal]:
    """List where the handler raises by a list of its own: DeepSeek models have one (.. 0.5.16)."""
    local = {
        pair[0]: pair[1]
        for step in read.steps(function)
        if (pair := read.assigned(step.node)) is not None and pair[0]
    }
    found = []
    for step in read.steps(function):
        if not isinstance(step.node, cst.If) or not list(read.find_all(step.node, cst.Raise)):
            continue
        sides = read.compared(step.node.test)
        if sides is None or sides[1] != "not in" or read.last_name(sides[0]) != ATTENTION_BACKEND:
            continue
        name = read.dotted(sides[2])
        backends = local.get(name, sides[2])
        if read.strings(backends) is not None:
            found.append(Refusal(step, backends, name))
    return found


def gaps(view: View) -> tuple[str, ...]:
    """Name what upstream's form leaves open: DeepSeek models are refused on ascend (.. 0.5.16)."""
    found = refusals(HANDLER.find(view).function)
    return () if all(refusal.accepts_ascend for refusal in found) else (DEEPSEEK_REFUSED.name,)


def repairs(view: View) -> Sequence[Target]:
    """Accept DeepSeek models where the tree says that ascend is ready for them."""
    if mode.native_branch(view) is None:
        return ()
    supported = find_list(view, SUPPORTED)
    with Located(supported.site):
        if not has_ascend(supported.node) and attention.ignores_prefix(view) is not None:
            return ()
    spot = HANDLER.find(view)
    return (Target(spot, accept),) if refusals(spot.function) else ()


def accept(node: cst.CSTNode) -> cst.CSTNode:
    """Append "ascend" to the list by which models are refused."""
    assert isinstance(node, cst.FunctionDef)
    refusing = [refusal for refusal in refusals(node) if not refusal.accepts_ascend]
    if not refusing:
        return node
    refusal = read.only(
        [each for each in refusing if len(refusing) == 1 and _is_of_deepseek(each)],
        lambda _: AnchorError(
            sought=f"the refusal of DeepSeek models in {node.name.value}",
            expected="one list of its own, in an if that asks for DeepSeek models",
            found="; ".join(excerpt(read.code(each.backends)) for each in refusing),
            action='append "ascend" to the list that refuses DeepSeek models',
        ),
    )
    here = [*read.find_all(refusal.step.node, cst.Name)]
    others = [
        name
        for name in read.find_all(node, cst.Name)
        if name.value == refusal.name and not any(name is inner for inner in here)
    ]
    if refusal.name and len(others) != 1:
        raise AnchorError(
            sought=f"{refusal.name} in {node.name.value}",
            expected="a list that is set once and that only the refusal uses",
            found=f"{len(others)} other uses",
            action='append "ascend" to the list',
        )
    longer = layout.append_to_list(refusal.backends, symbols.ASCEND, 0)
    return edit.swap(node, refusal.backends, longer)


def _is_of_deepseek(refusal: Refusal) -> bool:
    return any(
        isinstance(outer, cst.If) and inside and "deepseek" in read.code(outer.test).lower()
        for outer, inside in refusal.step.above
    )


SEAM = Seam(
    targets=targets,
    premise=premise,
    gaps=gaps,
    adapted=lambda view: mode.is_adapted(view) and not refusals(HANDLER.find(view).function),
)
