"""Cut code for a message: one line, with the part that matters in it."""

from __future__ import annotations

_SHOWN = 120
"""How many characters of a text to show."""
_LEAD = 40
"""How many of them at most stand before the part that matters."""


def excerpt(text: str, around: str = "") -> str:
    """Return a text on one line, cut to what can be read; dots stand for what is left out.

    Args:
        around: the part of the text to show; its beginning if there is no such part.
    """
    line = " ".join(text.split())
    return _cut(line, max(line.find(" ".join(around.split())), 0))


def parting(one: str, other: str) -> tuple[str, str]:
    """Return two texts on one line each, cut to what surrounds their first difference."""
    lines = [" ".join(text.split()) for text in (one, other)]
    if lines[0] == lines[1]:
        # They differ in white space alone, which has to be seen.
        lines = [repr(text)[1:-1] for text in (one, other)]
    differing = (at for at, (a, b) in enumerate(zip(*lines, strict=False)) if a != b)
    place = next(differing, min(map(len, lines)))
    return _cut(lines[0], place), _cut(lines[1], place)


def _cut(line: str, place: int) -> str:
    if len(line) <= _SHOWN:
        return line
    first = min(max(place - _LEAD, 0), len(line) - _SHOWN)
    last = first + _SHOWN
    return f"{'...' if first else ''}{line[first:last]}{'...' if last < len(line) else ''}"
