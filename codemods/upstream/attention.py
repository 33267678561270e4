"""Read the prefill branch of the Ascend attention backend; nothing here edits."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.operators import FUSED_ATTENTION
from sgl_npu_patch.codemods.upstream.symbols import FORWARD_EXTEND
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View


def prefill_branch(view: View) -> Spot:
    """Find the ``if self.use_fia`` that runs prefill of models without MLA.

    The same test occurs again for context parallelism, for attention sinks (from 0.5.11 on) and
    for models with MLA; those are not it.
    """
    return view.find_statement(
        FORWARD_EXTEND,
        _is_prefill_branch,
        holding="self.use_fia",
        sought=f"if self.use_fia of models without MLA in {FORWARD_EXTEND}",
    )


def _is_prefill_branch(node: ast.stmt, above: Sequence[tuple[ast.stmt, bool]]) -> bool:
    if not isinstance(node, ast.If) or ast.unparse(node.test) != "self.use_fia":
        return False
    mla = [False]
    for outer, inside in above:
        test = ast.unparse(outer.test) if isinstance(outer, ast.If) else ""
        if inside and ("is_cp_mode" in test or "sinks" in test):
            return False
        if test in ("self.use_mla", "not self.use_mla"):
            mla.append(inside != test.startswith("not"))
    return not mla[-1]


def ignores_prefix(view: View) -> Site | None:
    """Find the prefill branch, if it attends to the new keys only and ignores a cached prefix.

    Raises:
        AnchorError: the branch neither loops over the new tokens nor reads the paged cache.
    """
    spot = prefill_branch(view)
    assert isinstance(spot.node, cst.If)
    branch = spot.node.body
    fused = read.calls(branch, FUSED_ATTENTION)
    paged = [read.dotted(read.keyword(call, "block_table")) not in ("", "None") for call in fused]
    if paged and all(paged):
        return None
    loops = [
        loop
        for loop in read.find_all(branch, cst.For)
        if read.last_name(loop.iter).startswith("extend_seq_lens")
    ]
    if loops and paged and not any(paged):
        return spot.site
    raise AnchorError(
        sought="prefill attention in the use_fia branch",
        expected="a loop over the new tokens of each request, or calls with a block_table only",
        found="calls with and without a block_table" if any(paged) else "neither",
        where=(spot.site,),
        action=as_released("the branch"),
    )
