"""Declare one check, beside the group that does not end well."""

from __future__ import annotations

from sgl_npu_patch.verify.behaviour import Subject, check


@check("other")
def passes(subject: Subject) -> None:
    """It passes."""
