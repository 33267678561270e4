"""Hold what a check of a tree gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sgl_npu_patch.engine.errors import Site

Verdict = Literal["pass", "fail", "not-applicable"]
Kind = Literal["static", "behaviour", "layers", "contract", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Give one check's verdict on one tree.

    Attributes:
        id: the check's name, beginning with its seam: ``sampler.neighbours_change_nothing``.
        meaning: what the check says of a tree that passes, in one line.
        message: the meaning again where it passes, why it says nothing where it is not applicable,
            what is wrong where it fails.
        site: where to look in the tree.
        expected, found: the two sides of a failure.
        code: the shortest code that shows the failure.
        action: what to do about it.
        gap: the gap of native releases that a failure is, by the name that `status` gives it.
        measured: the chip on which a kit has measured it too.
        lost: the process that ran it ended too early, which may be the machine's doing.
    """

    id: str
    seam: str
    kind: Kind
    verdict: Verdict
    meaning: str
    message: str
    site: Site | None = None
    expected: str = ""
    found: str = ""
    code: str = ""
    action: str = ""
    gap: str = ""
    measured: str = ""
    lost: bool = False


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
