"""List the seams."""

from __future__ import annotations

import sys
from typing import Annotated

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import all_seams, documentation
from sgl_npu_patch.reports.formats import Target, render


def run(output: Annotated[str, options.format_option("series")] = "text") -> int:
    """List the seams of the series in order."""
    rows = [{"seam": name, "summary": documentation(name).splitlines()[0]} for name in all_seams()]
    write(render(output, "series", rows, Target(sys.stdout)))
    return exits.OK
