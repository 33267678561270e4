"""Explain a seam or a gap."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated

import typer

from sgl_npu_patch.commands import exits
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import all_seams, documentation
from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.reports.console import paragraph


def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SEAM|GAP",
            show_default=False,
            help="The name of a seam, or of a gap that `status` names.",
        ),
    ],
) -> int:
    """Explain a seam (why, where, upstream, when it ends), or a gap that one leaves open."""
    from sgl_npu_patch.codemods.upstream.gaps import GAPS

    if name in all_seams():
        write(*_headed(name, documentation(name)), *_needs(name))
    elif name in GAPS:
        gap = GAPS[name]
        releases = f"{gap.since} to {gap.until}" if gap.until else f"{gap.since} and later"
        text = "\n".join(paragraph(gap.text, others=""))
        write(*_headed(name, text), f"\nA gap of {gap.seam}, in SGLang {releases}.\n")
    else:
        near = get_close_matches(name, [*all_seams(), *GAPS], n=1)
        hint = f"the nearest is {near[0]}" if near else f"seams are {', '.join(all_seams())}"
        raise UsageError(f"no such seam or gap: {name}; {hint}")
    return exits.OK


def _headed(name: str, text: str) -> Iterable[str]:
    return (f"{name}\n{'=' * len(name)}\n\n{text}\n",)


def _needs(seam: str) -> Iterable[str]:
    declared = all_seams()[seam]
    needs = [*declared.needs, *(f"{need} (where it applies)" for need in declared.needs_if_defined)]
    if needs:
        yield f"\nNeeds: {', '.join(needs)}.\n"
