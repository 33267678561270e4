"""Look at the members of a wheel before anything is taken from it."""

from __future__ import annotations

import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Refused


def check_members(wheel: str, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse members that lead elsewhere, are no files, or stand for the same file twice.

    Raises:
        Refused: a member is one that no build tool writes.
    """
    counted = Counter(member.filename for member in members)
    folders = {
        parent.as_posix() for name in counted for parent in PurePosixPath(name).parents if name
    }
    for member in members:
        parts = member.filename.split("/")
        escapes = {"", ".", ".."}.intersection(parts) or re.search(r"[\\:\0]", member.orig_filename)
        mode = member.external_attr >> 16
        special = stat.S_IFMT(mode) not in (0, stat.S_IFREG)
        clashes = counted[member.filename] > 1 or member.filename in folders
        if escapes or special or clashes:
            times = " more than once" if counted[member.filename] > 1 else ""
            raise Refused(
                f"{wheel} holds {member.filename!r}{times}, which a wheel never does;"
                " nothing was taken from it"
            )


def find_copies(names: Iterable[str]) -> tuple[PurePosixPath, ...]:
    """List the folders in which the package stands once more, such as `build/lib/sglang`."""
    found = {
        PurePosixPath(name.partition("/sglang/srt/")[0], "sglang")
        for name in names
        if "/sglang/srt/" in name
    }
    return tuple(sorted(found))
