"""The fingerprints of SGLang's functions, which tell a renamed one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.codemods.upstream.symbols import SYMBOLS
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.trees.directory import DirectoryTree, open_directory
from sgl_npu_patch.engine.view import View
from tests.upstream.bodies import BODIES, fingerprints
from tests.upstream.releases import RELEASES, release_tree

NEW = "run_all_of_it"
KNOWN = {
    key: {tuple(form) for form in forms}
    for key, forms in json.loads(BODIES.read_text("utf-8")).items()
}


class Renamed(DirectoryTree):
    """Read a tree in which every mention of a name is another one."""

    name: bytes

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        if needle == self.name:
            return ()
        found = DirectoryTree.containing(self, needle, among)
        if needle != NEW.encode():
            return found
        return (*found, *DirectoryTree.containing(self, self.name))

    def read(self, path: PurePosixPath) -> bytes | None:
        data = DirectoryTree.read(self, path)
        return data and re.sub(rb"\b%b\b" % self.name, NEW.encode(), data)


@pytest.mark.parametrize("version", [RELEASES[0], "0.5.12", RELEASES[-1]])
def test_every_release_is_known(version: str) -> None:
    for key, fingerprint in fingerprints(version).items():
        assert fingerprint in KNOWN[key], "see tests/upstream/refresh.py"


@pytest.fixture(scope="module")
def newest() -> DirectoryTree:
    return open_directory(release_tree(RELEASES[-1]), PROJECT)


NOT_ONE = ("IS_NPU", "SAMPLE_ASCEND_PROBS", "PREPARE_FOR_DECODE")
"""What the newest release does not have, or several of that name."""


@pytest.mark.parametrize("key", NOT_ONE)
def test_what_is_not_there_once_is_not_found(newest: DirectoryTree, key: str) -> None:
    with pytest.raises(AnchorError, match="expected exactly one definition"):
        SYMBOLS[key].find(View(Overlay(newest), []))


@pytest.mark.parametrize("key", [key for key in KNOWN if key not in NOT_ONE])
def test_a_renamed_function_is_found_by_its_body(newest: DirectoryTree, key: str) -> None:
    symbol = SYMBOLS[key]
    spot = symbol.find(View(Overlay(newest), []))
    # What was read is shared: a release has thousands of files.
    renamed = Renamed(newest.root, PROJECT, newest.package, _data=newest._data)
    renamed.name = spot.block.name.encode()
    with pytest.raises(AnchorError) as caught:
        symbol.find(View(Overlay(renamed), []))
    qualname = spot.block.qualname.replace(spot.block.name, NEW)
    assert caught.value.nearest.startswith(f"{spot.path}:{spot.block.line} {qualname} (the same")
