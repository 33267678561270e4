"""Advise on code that no release has."""

from __future__ import annotations


def as_released(what: str) -> str:
    """Advise to write it as SGLang's releases do, which is all that unknown code allows."""
    return f"write {what} as SGLang's releases do, or report the release that has this structure"
