"""Say what statuses mean, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sgl_npu_patch.engine.model import Outcome, Status

STYLES: Mapping[Status, str] = {
    "applied": "green",
    "pending": "yellow",
    "already": "green",
    "upstream": "cyan",
    "not-needed": "dim",
    "withheld": "yellow",
    "conflict": "bold red",
}

_MEANINGS: Mapping[str, str] = {
    "applied": "this run wrote it",
    "pending": "`apply` would write it",
    "already": "in the tree",
    "upstream": "SGLang does it itself",
    "not-needed": "nothing to patch",
    "withheld": "left out as unsafe",
    "conflict": "cannot be placed",
}
_NOTES: Mapping[str, str] = {
    "outdated": "an older version wrote it",
    "gaps": "left open",
}


def said(outcome: Outcome) -> str:
    """Return a status in full."""
    notes = ["outdated"] if outcome.outdated else []
    if outcome.gaps:
        notes.append("1 gap" if len(outcome.gaps) == 1 else f"{len(outcome.gaps)} gaps")
    return f"{outcome.status} ({', '.join(notes)})" if notes else outcome.status


def legend(outcomes: Iterable[Outcome], mark: str = "") -> str:
    """Return one line that says what the statuses among some outcomes mean.

    Args:
        mark: stands for outdated seams and those with gaps, which are named otherwise.
    """
    statuses: set[str] = set()
    notes: set[str] = set()
    for outcome in outcomes:
        statuses.add(outcome.status)
        notes.update(["outdated"] * outcome.outdated, ["gaps"] * bool(outcome.gaps))
    parts = [f"{status}: {told}" for status, told in _MEANINGS.items() if status in statuses]
    if mark and notes:
        parts.append(f"{mark} outdated, or with gaps")
    else:
        parts += [f"{note}: {told}" for note, told in _NOTES.items() if note in notes]
    return "; ".join(parts)
