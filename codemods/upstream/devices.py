"""Find what tells the device; nothing here edits."""

from __future__ import annotations

import libcst as cst

from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View

_UTILS = "srt/utils/common.py"


def import_is_npu(view: View, spot: Spot) -> str:
    """Give the line that imports ``is_npu`` inside a function, empty where its module has it.

    Raises:
        AnchorError: no utility module defines it.
    """
    own = view.source(spot.path)
    if own.binds("is_npu") and not own.named("is_npu", "assignment"):
        return ""
    if own.named("is_npu", "assignment"):
        raise AnchorError(
            sought="is_npu",
            expected="a function of that name, or no such name in the module",
            found="a variable",
            where=tuple(
                Site(own.path, block.line, "is_npu") for block in own.named("is_npu", "assignment")
            ),
            action="give the variable another name",
        )
    source = view.overlay.source(view.package / _UTILS)
    if source is not None and source.named("is_npu", "function"):
        line = "from sglang.srt.utils.common import is_npu\n\n"
        statement = edit.block(line)[0]
        ours = any(read.alike(step.node, statement) for step in read.steps(spot.node))
        if not ours and any(n.value == "is_npu" for n in read.find_all(spot.node, cst.Name)):
            # An import inside the function would make the name local to all of it.
            raise AnchorError(
                sought=f"is_npu in {spot.path.name}",
                expected="an import or a definition of it, under no condition",
                found=f"a use in {spot.block.name} of a name that the module does not always have",
                where=(spot.site,),
                action="import is_npu at module level",
            )
        return line
    raise AnchorError(
        sought="is_npu",
        expected=f"a function in {_UTILS}",
        found="none",
        where=(spot.site,),
        action="see where it is defined now and adapt codemods/upstream",
    )
