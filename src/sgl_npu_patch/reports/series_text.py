"""Print the seams for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sgl_npu_patch.reports.formats import Target


def render(rows: Sequence[Mapping[str, str]], target: Target) -> str:
    """Return one line a seam."""
    width = max(len(row["seam"]) for row in rows)
    return "".join(f"{row['seam']:<{width}}  {row['summary']}\n" for row in rows)
