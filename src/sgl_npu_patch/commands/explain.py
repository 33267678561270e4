"""Explain a seam."""

from __future__ import annotations

from typing import Annotated

import typer

from sgl_npu_patch.commands import exits
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import all_seams, documentation


def run(
    name: Annotated[str, typer.Argument(metavar="SEAM", show_default=False, help="A seam's name.")],
) -> int:
    """Explain one seam in full: why, where, upstream, and when it ends."""
    from sgl_npu_patch.engine.plan import check_known

    series = all_seams()
    check_known(series, [name])
    seam = series[name]
    parts = [f"{name}\n{'=' * len(name)}\n\n{documentation(name)}\n"]
    needs = [*seam.needs, *(f"{need} (where it applies)" for need in seam.needs_if_defined)]
    if needs:
        parts.append(f"\nNeeds: {', '.join(needs)}.\n")
    write(*parts)
    return exits.OK
