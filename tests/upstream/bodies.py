"""Collect the fingerprints that the functions of SGLang have had over its releases."""

from __future__ import annotations

import json
from pathlib import Path

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.text.fingerprint import Fingerprint, fingerprint_of
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.view import View
from tests.upstream.releases import RELEASES, release_tree

BODIES = Path(symbols.__file__).with_name(symbols.BODIES)


def fingerprints(version: str) -> dict[str, Fingerprint]:
    """Return those of one release, by the names that the symbols have in `symbols.py`."""
    view = View(Overlay(open_directory(release_tree(version), PROJECT)), [])
    found = {}
    for key, symbol in symbols.SYMBOLS.items():
        if symbol.kind == "function" and symbol.is_in(view):
            try:
                spot = symbol.find(view)
            except AnchorError:
                # Several functions of that name: no codemod looks for it by the name alone.
                continue
            fingerprint = fingerprint_of(view.source(spot.path).cut(spot.block))
            assert fingerprint is not None
            found[key] = fingerprint
    return found


def write_bodies() -> None:
    """Rewrite the file that the codemods read, one fingerprint a line."""
    known: dict[str, set[Fingerprint]] = {}
    for version in RELEASES:
        for key, fingerprint in fingerprints(version).items():
            known.setdefault(key, set()).add(fingerprint)
    blocks = [
        f"{json.dumps(key)}: [\n"
        + ",\n".join(f"  {json.dumps(each)}" for each in sorted(known[key]))
        + "\n]"
        for key in symbols.SYMBOLS
        if key in known
    ]
    BODIES.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8", newline="\n")
