"""Count each token once in the penalties of its request, whatever runs in between.

**Why**: with overlap, which is on by default, penalties are fed the last token that is known when a
batch is prepared. That is one step behind, unless a prefill ran in between: then one token is left
out and the next counts twice, so that another request's arrival changes tokens. A retracted request
starts from nothing. And without overlap a set of classes decides in which order they are applied.

**Where**: `prepare_for_decode` counts all tokens but the newest, and `copy_for_forward` (up to
0.5.3: `forward_batch_generation` of the overlap thread) makes a copy for the forward pass, which
counts the newest. `from_schedule_batch` puts penalties in order, and counts what retracted requests
have generated. All call the module penalties, which is copied into the tree. Speculative decoding
is left as it is.

**Upstream**: has none of it.

**Ends when**: upstream feeds penalties the token that was sampled last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from sgl_npu_patch.codemods.upstream import devices
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.gaps import PENALTIES_COUNTED_WRONGLY
from sgl_npu_patch.codemods.upstream.symbols import FORWARD_COPY, FROM_BATCH, PREPARE_FOR_DECODE
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import match
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.templates import render

PENALIZERS = "penalizer_orchestrator"
_IN_BATCH = f"self.sampling_info.{PENALIZERS}"
_SUM = "self.update_penalties()"
_COPY = f"dataclasses.replace(self, {PENALIZERS}=None)"
_MARK = "penalties"


def targets(view: View) -> Sequence[Target]:
    """Find where a batch's penalties begin, and what copies and counts them."""
    begin = FROM_BATCH.find(view, holding=f"{PENALIZERS}=")
    copy = FORWARD_COPY.find(view, holding=f"{PENALIZERS}=")
    decode = PREPARE_FOR_DECODE.find(view, holding=_IN_BATCH)
    return (
        Target(begin, partial(begin_counting, imports=devices.import_is_npu(view, begin))),
        Target(copy, partial(hand_over, imports=devices.import_is_npu(view, copy))),
        Target(decode, partial(count_known, imports=devices.import_is_npu(view, decode))),
    )


def begin_counting(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Put penalties in order where they are made, and count what was generated before."""
    assert isinstance(node, cst.FunctionDef)
    expected = f"NAME = cls(..., {PENALIZERS}=...)"
    step, call = _statement_with(node, "cls", expected)
    info, value = read.assigned(step.node) or ("", None)
    if not info or value is not call:
        raise _unclear(node, expected, read.code(step.node))
    text = imports + render("penalties_begin", info=info)
    return edit.place(node, step, text, mark=_MARK, after=True, blank=True)


def hand_over(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Give a forward pass a copy of the penalties, which counts the newest tokens."""
    assert isinstance(node, cst.FunctionDef)
    if node.name.value == FORWARD_COPY.name:
        return _copy(node, imports)
    expected = f"NAME = dataclasses.replace(NAME, ..., {PENALIZERS}=None)"
    step, call = _statement_with(node, "replace", expected)
    assigned = read.small(step.node, cst.Assign)
    copy = read.dotted(assigned.targets[-1].target) if assigned is not None else ""
    info = read.dotted(call.args[0].value)
    if not (copy and info and read.dotted(read.keyword(call, PENALIZERS)) == "None"):
        raise _unclear(node, expected, read.code(step.node))
    text = imports + render("penalties_hand_over", info=info, copy=copy)
    return edit.place(node, step, text, mark=_MARK, after=True, blank=True)


def _copy(node: cst.FunctionDef, imports: str) -> cst.FunctionDef:
    expected = f"{_SUM} and return {_COPY}"
    step, call = _statement_with(node, "replace", expected)
    returned = read.small(step.node, cst.Return)
    sums = [s for s in read.steps(node) if match(_SUM, s.node) is not None]
    if (
        returned is None
        or returned.value is not call
        or match(_COPY, call) is None
        or [s.next for s in sums] != [step.node]
    ):
        raise _unclear(node, expected, read.code(step.node))
    text = imports + render("penalties_copy")
    return edit.place(node, sums[0], text, mark=_MARK, blank=sums[0].index > 0)


def count_known(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Let the module count what is known before decoding, and SGLang where it does not."""
    assert isinstance(node, cst.FunctionDef)
    (choice,) = edit.block(render("penalties_count"), blank=True)
    assert isinstance(choice, cst.If)
    test = f"{_IN_BATCH}.is_required"
    found: list[tuple[Step, cst.If]] = []
    for step in read.steps(node):
        if isinstance(step.node, cst.If) and len(step.above) == 1:
            ours = read.alike(step.node.test, choice.test)
            branch = step.node.orelse if ours else step.node
            if isinstance(branch, cst.If) and match(test, branch.test) is not None:
                found.append((step, branch))
    if len(found) != 1:
        raise _unclear(node, f"one if {test}: of its own", f"{len(found)} of them")
    step, branch = found[0]
    text = imports + render("penalties_import")
    node = edit.place(node, step, text, mark=_MARK, blank=step.index > 0)
    if step.node is not branch:
        return node
    above = [line for line in branch.leading_lines if line.comment]
    counted = branch.with_changes(leading_lines=above)
    return edit.swap(node, branch, choice.with_changes(orelse=counted))


def _statement_with(node: cst.FunctionDef, name: str, expected: str) -> tuple[Step, cst.Call]:
    """Find the one statement of a function's own block with a call that is told the penalizers."""
    found = [
        (step, call)
        for step in read.steps(node)
        if isinstance(step.node, cst.SimpleStatementLine)
        for call in read.calls(step.node, name)
        if read.keyword(call, PENALIZERS) is not None
    ]
    if len(found) == 1 and len(found[0][0].above) == 1:
        return found[0]
    raise _unclear(node, f"one {expected}", "; ".join(read.code(s.node) for s, _ in found))


def _unclear(node: cst.FunctionDef, expected: str, found: str) -> AnchorError:
    sought = f"what {node.name.value} does with {PENALIZERS}"
    return AnchorError(
        sought=sought,
        expected=expected,
        found=excerpt(found) or "none",
        action=as_released(sought),
    )


SEAM = Seam(
    targets=targets,
    gaps=lambda view: (PENALTIES_COUNTED_WRONGLY.name,),
    vendors=("penalties",),
)
