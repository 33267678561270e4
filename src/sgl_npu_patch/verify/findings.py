"""Turn what a check of a tree's text finds into its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result

_SHOWN = 5
"""How many findings of one check are told."""
UNPATCHED = Result(
    id="series.is_applied",
    seam="",
    kind="static",
    verdict="fail",
    meaning="The tree is patched.",
    message="the tree is not patched",
    action="run sgl-npu-patch apply first",
)
"""Stands for all checks of a tree that nothing was applied to."""


class NotApplicable(Exception):
    """Say why a check has no meaning on a tree."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Say what is wrong at one place, and what to do about it."""

    site: Site
    expected: str
    found: str
    action: str
    code: str = ""


def failed(name: str, seam: str, meaning: str, findings: Sequence[Finding]) -> Result:
    """Make one result of a check's findings: the first in full, the others by their places."""
    first, *others = findings
    message = f"expected {first.expected}, found {first.found}"
    code = [first.code] if first.code else []
    if others:
        message += f" (and {len(others)} more)"
        code += [f"also {each.site}: {each.found}" for each in others[: _SHOWN - 1]]
    return Result(
        id=name,
        seam=seam,
        kind="static",
        verdict="fail",
        meaning=meaning,
        message=message,
        site=first.site,
        expected=first.expected,
        found=first.found,
        code="\n".join(code),
        action=first.action,
    )
