"""Sample tokens by seed and position on the sampling backend "pytorch", the default, on an NPU.

**Why**: SGLang hashes the rank of a token, not its id, as soon as one request of the batch is
greedy or has top-k, top-p or min-p. So such a neighbour changes the tokens of all others. Before
0.5.9 what is drawn by seed does not follow the distribution; from then on min-p raises
AssertionError, for its neighbours too. Here each row is drawn as if it were alone.

**Where**: the top of `top_k_top_p_min_p_sampling_from_probs_torch` and, where it takes a seed (from
0.5.3.post2), of `sampling_from_probs_torch`. Both hand seeded draws on an NPU over to the module
seeded_sampling, which is copied into the tree. Where an Ascend path draws by seed, both backends
draw the same token, except where their filters or their rounding differ.

**Upstream**: has none of it.

**Ends when**: upstream hashes token ids on every path, and filters each row by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from sgl_npu_patch.codemods.upstream import devices
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.draws import SEED
from sgl_npu_patch.codemods.upstream.filtered_paths import INTERFACE, POSITIONS
from sgl_npu_patch.codemods.upstream.gaps import PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS
from sgl_npu_patch.codemods.upstream.symbols import DRAW_FILTERED, DRAW_UNFILTERED
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.cst.signature import has_parameters
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.text.uses import find_uses
from sgl_npu_patch.engine.view import Spot, View
from sgl_npu_patch.templates import render

_UNFILTERED = ("probs", SEED, POSITIONS)
_FILTERED = ("probs", *INTERFACE[1:], SEED, POSITIONS)
_DETAILS = "return_filtered_probs"
_BY_KEYWORD = frozenset({_DETAILS, "max_top_k"})
"""What newer releases take by keyword; the second only says what top_ks are bounded by."""


def targets(view: View) -> Sequence[Target]:
    """Find the functions that draw from probabilities by seed."""
    filtered = DRAW_FILTERED.find(view)
    found = [Target(filtered, partial(draw_filtered, imports=_imports(view, filtered)))]
    if DRAW_UNFILTERED.is_in(view):
        unfiltered = DRAW_UNFILTERED.find(view)
        if has_parameters(unfiltered.function, SEED):
            imports = _imports(view, unfiltered)
            found.insert(0, Target(unfiltered, partial(draw, imports=imports)))
        else:
            _require_unused(view, unfiltered)
    return found


def _imports(view: View, spot: Spot) -> str:
    return devices.import_is_npu(view, spot)


def draw(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Hand a seeded draw over that nothing is filtered for."""
    assert isinstance(node, cst.FunctionDef)
    _require_parameters(node, _UNFILTERED, frozenset())
    return _hand_over(node, imports + render("seeded_draw"))


def draw_filtered(node: cst.CSTNode, imports: str) -> cst.CSTNode:
    """Hand a seeded draw over with what each row is filtered by."""
    assert isinstance(node, cst.FunctionDef)
    given = _require_parameters(node, _FILTERED, _BY_KEYWORD)
    further = f"\n        {_DETAILS}," if _DETAILS in given else ""
    return _hand_over(node, imports + render("seeded_draw_filtered", further=further))


def _hand_over(node: cst.FunctionDef, text: str) -> cst.FunctionDef:
    ours = edit.block(text)
    own = [step for step in read.steps(node) if len(step.above) == 1]
    at = 1 if own and _is_docstring(own[0]) else 0
    there = own[at : at + len(ours)]
    if [read.alike(s.node, o) for s, o in zip(there, ours, strict=False)] == [True] * len(ours):
        at += len(ours)
    if at == len(own):
        raise AnchorError(
            sought=f"the body of {node.name.value}",
            expected="the statements that draw, in front of which ours go",
            found="none",
            action=as_released("the function"),
        )
    placed = edit.place(node, own[at], text, mark="seeded_sampling")
    _require_tokens_returned(node, own[at:])
    return placed


def _is_docstring(step: Step) -> bool:
    expression = read.small(step.node, cst.Expr)
    return expression is not None and read.string(expression.value) is not None


def _require_parameters(
    node: cst.FunctionDef, expected: tuple[str, ...], known: frozenset[str]
) -> set[str]:
    """Insist on the parameters by position, and return those by keyword, which must be known."""
    params = node.params
    names = tuple(p.name.value for p in read.parameters(node))
    further = {p.name.value for p in params.kwonly_params}
    starred = params.star_kwarg or (isinstance(params.star_arg, cst.Param) and params.star_arg)
    if names != expected or starred or not further <= known:
        raise AnchorError(
            sought=f"the parameters of {node.name.value}",
            expected=", ".join(expected)
            + (f", and by keyword at most {', '.join(sorted(known))}" if known else ""),
            found=excerpt(read.code(params)) or "none",
            action=as_released("the parameters"),
        )
    return further


def _require_tokens_returned(node: cst.FunctionDef, drawing: Sequence[Step]) -> None:
    """Insist that the function returns tokens alone, beside what is returned if asked."""
    last = drawing[-1].node
    plain = read.small(last, cst.Return)
    detailed = [
        step.node
        for step in drawing
        if isinstance(step.node, cst.If)
        and step.node.orelse is None
        and read.dotted(step.node.test) == _DETAILS
    ]
    allowed = [last, *detailed]
    returns = [
        returned
        for step in drawing
        if not any(step.node is each for each in allowed)
        for returned in read.find_all(step.node, cst.Return)
    ]
    lengths = {_length(r) for each in detailed for r in read.find_all(each, cst.Return)}
    if plain is None or _length(plain) != 1 or returns or not lengths <= {4}:
        found = [each for step in drawing for each in read.find_all(step.node, cst.Return)]
        raise AnchorError(
            sought=f"what {node.name.value} returns",
            expected="the tokens, in the last statement and nowhere else"
            + (f", or four values if {_DETAILS}" if detailed else ""),
            found="; ".join(excerpt(read.code(each)) for each in found) or "nothing",
            action=as_released("the function"),
        )


def _length(returned: cst.Return) -> int:
    value = returned.value
    if isinstance(value, cst.Tuple):
        return len(value.elements)
    return 0 if value is None or read.dotted(value) == "None" else 1


def _require_unused(view: View, spot: Spot) -> None:
    """Insist that nothing draws by a function that takes no seed (to 0.5.3.post1)."""
    name = spot.block.name
    for path in view.overlay.mentioning(name):
        source = view.source(path)
        used = [use for use in find_uses(name, source.text) if use.kind != "definition"]
        if used:
            raise AnchorError(
                sought=f"the parameters of {name}",
                expected=f"{SEED} and {POSITIONS}, or no use of the function",
                found="a use of it, which loses the seed",
                where=(spot.site, *(Site(path, use.line, name) for use in used)),
                action=f"take the use out, or give it {SEED} and {POSITIONS}",
            )


SEAM = Seam(
    targets=targets,
    gaps=lambda view: (PYTORCH_DRAW_DEPENDS_ON_NEIGHBOURS.name,),
    vendors=("seeded_sampling",),
)
