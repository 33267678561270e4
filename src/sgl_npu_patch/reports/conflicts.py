"""Lay out conflicts, one block a cause that names every seam it stops, and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sgl_npu_patch.engine.model import Evidence, Outcome
from sgl_npu_patch.reports.codec import OpenGap
from sgl_npu_patch.reports.console import labelled, paragraph

_SITES = 6


def causes(outcomes: Iterable[Outcome]) -> list[tuple[Evidence, tuple[str, ...]]]:
    """List the causes of conflicts, each with the seams that it stops."""
    found: dict[Evidence, list[str]] = {}
    for outcome in outcomes:
        if outcome.evidence is not None:
            found.setdefault(outcome.evidence, []).append(outcome.seam)
    return [(evidence, tuple(seams)) for evidence, seams in found.items()]


def title(seams: Sequence[str]) -> str:
    """Return the first line of a block."""
    return f"conflict in {', '.join(seams)}"


def evidence_lines(evidence: Evidence) -> list[str]:
    """Lay out the evidence of a conflict."""
    more = len(evidence.where) - _SITES
    return [
        *labelled("sought", evidence.sought),
        *labelled("expected", evidence.expected),
        *labelled("found", evidence.found),
        *(line for site in evidence.where[:_SITES] for line in labelled("where", str(site))),
        *(labelled("where", f"and {more} more") if more > 0 else ()),
        *labelled("nearest", evidence.nearest),
        *labelled("next", evidence.action),
    ]


def gap_lines(gap: OpenGap) -> list[str]:
    """Lay out what a gap means, and what to do about it."""
    return [*paragraph(gap.meaning, "  ", "  "), *labelled("next", gap.remedy)]
