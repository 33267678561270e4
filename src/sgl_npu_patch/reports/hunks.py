"""Find the part of a tree's unified diff that belongs to one seam."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sgl_npu_patch.engine.errors import Site

_OLD_RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? ")


def seam_diff(diff: str, sites: Sequence[Site]) -> str:
    """Return the hunks that touch one of these places, with the heads of their files."""
    files = re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)
    return "".join(_file(file, sites) for file in files if file)


def _file(file: str, sites: Sequence[Site]) -> str:
    head, *hunks = re.split(r"^(?=@@ )", file, flags=re.MULTILINE)
    new = next((line[4:].strip('"\t') for line in head.split("\n") if line[:4] == "+++ "), "")
    # The diff's paths may have a folder in front that those of the tree have not.
    lines = [site.line for site in sites if new.endswith(f"/{site.path}")]
    kept = [hunk for hunk in hunks if any(_touches(hunk, line) for line in lines)]
    return head + "".join(kept) if kept else ""


def _touches(hunk: str, line: int) -> bool:
    found = _OLD_RANGE.match(hunk)
    assert found is not None
    start, length = int(found[1]), int(found[2] or 1)
    # A new file has no lines of old, and a site of none means its whole file.
    return not line or not length or start <= line <= start + length
