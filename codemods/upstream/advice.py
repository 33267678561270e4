"""Advise on code of a form that no release has."""

from __future__ import annotations


def as_released(what: str) -> str:
    """Advise to restore the form of SGLang's releases, which is all that an unknown one allows."""
    return f"write {what} as SGLang's releases do, or report the release that has this form"
