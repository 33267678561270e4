"""Add "ascend" to the attention backends that deterministic inference accepts.

**Why**: without the entry the server refuses to start with `--attention-backend ascend`, the only
attention backend for an NPU, and `--enable-deterministic-inference`.

**Where**: the list `DETERMINISTIC_ATTENTION_BACKEND_CHOICES`, in `srt/server_args.py` or, from
0.5.20 on, `srt/arg_groups/choices.py`.

**Upstream**: pull request 21197 (0.5.13) adds the same entry.

**Ends when**: no release before 0.5.13 is patched any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream import mode
from sgl_npu_patch.codemods.upstream.symbols import ASCEND, CHOICES, Symbol
from sgl_npu_patch.engine.cst import edit, layout, read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import Spot, View


def targets(view: View) -> Sequence[Target]:
    """Find the list."""
    return (Target(find_list(view, CHOICES), add_ascend),)


def find_list(view: View, symbol: Symbol) -> Spot:
    """Find a list of backends, to which no statement adds "ascend" later.

    Raises:
        AnchorError: there is no such list, or more than one, or it gets the entry elsewhere.
    """
    spot = symbol.find(view)
    name = spot.block.name
    later = re.compile(rf"{name}\s*(?:\.\s*(?:append|extend|insert)\b|\+=).*\b{ASCEND}\b".encode())
    for path in view.overlay.mentioning(name):
        data = view.overlay.read(path) or b""
        for match in later.finditer(data):
            above = (data[: match.start()] + b" ").splitlines()
            if b"#" in above[-1]:
                continue
            raise AnchorError(
                sought=f'"{ASCEND}" in {name}',
                expected="an entry in the list itself, or none",
                found=excerpt(match.group().decode("ascii", "replace")),
                where=(Site(path, len(above), name), spot.site),
                action="write the entry into the list instead",
            )
    return spot


def has_ascend(node: cst.CSTNode) -> bool:
    """Report whether a list of strings holds "ascend".

    Raises:
        AnchorError: the value is not a literal list of strings, or holds it more than once.
    """
    values = read.strings(_value(node))
    if not values or values.count(ASCEND) > 1:
        raise AnchorError(
            sought=f'"{ASCEND}" in the list',
            expected='a literal list of strings that holds "ascend" at most once',
            found=excerpt(read.code(_value(node) or node)),
            action='write it as a literal list of strings, with "ascend" at most once',
        )
    return ASCEND in values


def add_ascend(node: cst.CSTNode) -> cst.CSTNode:
    """Append "ascend" in the layout of the other entries."""
    if has_ascend(node):
        return node
    value = _value(node)
    assert value is not None
    assert isinstance(node, cst.SimpleStatementLine)
    width = len(read.code(node.with_changes(leading_lines=[])))
    return edit.swap(node, value, layout.append_to_list(value, ASCEND, width))


def _value(node: cst.CSTNode) -> cst.BaseExpression | None:
    pair = read.assigned(node)
    return pair[1] if pair and pair[0] else None


SEAM = Seam(targets=targets, needs=("radix_cache",), adapted=mode.is_adapted)
