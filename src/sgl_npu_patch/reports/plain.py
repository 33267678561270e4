"""Make foreign text (paths, names of revisions, reasons) harmless to print."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
"""Categories that steer a terminal, break a line, turn the direction of reading or have no form."""


def visible(text: str, keep: str = "") -> str:
    r"""Write characters that nobody would see as escapes, such as ``\x1b``.

    The result is one line unless ``keep`` has a line feed, valid in UTF-8, and free of what XML
    has no way to write.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii")
        if unicodedata.category(c) in _HIDDEN and c not in keep
        else c
        for c in text
    )
