"""Find what most likely took the place of a definition that is gone, as a hint for a conflict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Refused, Site
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.text.block import Kind
from sgl_npu_patch.engine.text.fingerprint import Hint, fingerprint_of
from sgl_npu_patch.engine.text.source import Source

_FILES = 5
"""How many files to look into for a hint."""
_LIKE = 0.7
"""The likeness from which on a definition is worth naming."""
_TOGETHER = 0.35
"""What it adds to the likeness of a definition that it is used with the same others."""
_TELLING = 2
"""How many parameters must be the same to tell anything."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """Place a candidate, and state what makes it one and which sought name is most like its own."""

    site: Site
    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.site} ({self.what} is not taken)"


def find_nearest(overlay: Overlay, names: Sequence[str], kind: Kind, hint: Hint) -> Nearest | None:
    """Find the definition that is most like one that is sought in vain.

    The same body counts most, then the same parameters, then a similar name.
    """
    sources = [*_files(overlay, names, hint)]
    companions = "\n".join(
        source.cut(block)
        for source in sources
        for block in source.blocks
        if block.kind == "function" and block.name in hint.beside
    )
    used = set(re.findall(r"\w+", companions))
    users = re.compile("|".join(rf"\b{name}\b" for name in hint.beside) or r"(?!)")
    known = {*names, *hint.beside}
    best, found = (0, _LIKE), None
    for source in sources:
        for block in source.blocks:
            if block.kind != kind or block.name in known:
                continue
            text = source.cut(block)
            grade, what = _compare(text, hint) if kind == "function" else (0, "a similar name")
            likeness, name = max((_likeness(name, block.name), name) for name in names)
            if block.name in used or users.search(text):
                likeness += _TOGETHER
            # Of two that are as good, the first one stands in the likelier file.
            if (grade, likeness) > best:
                best = grade, likeness
                found = Nearest(Site(source.path, block.line, block.qualname), what, name)
    return found


def _compare(text: str, hint: Hint) -> tuple[int, str]:
    own = fingerprint_of(text) if hint.forms else None
    if own is not None and any(own.body == form.body for form in hint.forms):
        return 2, "the same body under another name"
    telling = own is not None and len(own.parameters.split()) >= _TELLING
    if own is not None and telling and own.parameters in {f.parameters for f in hint.forms}:
        return 1, "one with the same parameters"
    return 0, "a similar name"


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _files(overlay: Overlay, names: Sequence[str], hint: Hint) -> Iterator[Source]:
    """Yield the likeliest files first: those that mention a name that is sought, or the others."""
    weight: dict[PurePosixPath, int] = {}
    parts = [part for name in names for part in _parts(name)]
    defined = [f"def {name}" for name in hint.beside]
    for rank, some in enumerate((parts, hint.beside, defined, names)):
        for name in some:
            for path in overlay.mentioning(name):
                weight[path] = weight.get(path, 0) + 10**rank
    for path in sorted(weight, key=lambda path: (-weight[path], path))[:_FILES]:
        try:
            source = overlay.source(path)
        except Refused:
            continue
        if source is not None:
            yield source


def _parts(name: str) -> list[str]:
    """List the longest pairs of words in a name, which a new name may have kept."""
    words = name.strip("_").split("_")
    return sorted({"_".join(words[i : i + 2]) for i in range(len(words))}, key=len)[-3:]
