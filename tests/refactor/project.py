"""Hold the files of a release that the series reads, and find definitions in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.plan import Plan, make_plan
from sgl_npu_patch.engine.text.block import Block
from sgl_npu_patch.engine.text.source import Source, read_source
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.helpers import MemoryTree
from tests.upstream.releases import release_tree

SHAPES = ("0.5.3rc2", "0.5.3.post2", "0.5.4.post1", "0.5.9", "0.5.11", "0.5.12.post1", "0.5.23")
"""One release of every shape that the series patches, and one of those that it repairs."""

HANDLER = symbols.HANDLER.names[0]
LISTS = (
    "DETERMINISTIC_ATTENTION_BACKEND_CHOICES",
    "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND",
)
MODE = ("enable_batch_invariant_mode", "disable_batch_invariant_mode", "set_batch_invariant_mode")
SAMPLER_METHODS = ("_forward_ascend_backend", "_sample_from_logits")
SAMPLER_FUNCTIONS = ("top_k_top_p_min_p_sampling_from_logits_ascend", "multinomial_with_seed")
DISPATCH = "get_dispatch_device_backend"
PREFILL = "forward_extend"
FUNCTIONS = (HANDLER, *MODE, DISPATCH, *SAMPLER_METHODS, *SAMPLER_FUNCTIONS, PREFILL)


@dataclass(frozen=True)
class Case:
    """Hold one refactored release.

    ``renamed`` maps new local names to old ones, ``added`` the entries put into lists, and
    ``touched`` names what was refactored.
    """

    version: str
    touched: str
    files: Mapping[PurePosixPath, bytes]
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: frozenset[str] = frozenset()


@cache
def base(version: str) -> dict[PurePosixPath, bytes]:
    """Give the files of a release that the series looks at, by path; not to be changed."""
    tree = open_directory(release_tree(version), PROJECT)
    plan = make_plan(tree, SERIES)
    paths = {path for found in plan.overlay.cache.mentions.values() for path in found}
    paths |= {path for path, _ in plan.overlay.cache.sources}
    paths |= {tree.package / "srt/utils/common.py", tree.package / "srt/utils.py"}
    paths.add(tree.package / PROJECT.vendor_folder / f"{symbols.UPSTREAM_OPS}.py")
    read = {path: tree.read(path) for path in sorted(paths)}
    return {path: data for path, data in read.items() if data is not None}


def plan_of(files: Mapping[PurePosixPath, bytes]) -> Plan:
    """Judge the series on these files."""
    return make_plan(_overlay(files), SERIES)


_SHARED = Overlay(MemoryTree({})).cache


def _overlay(files: Mapping[PurePosixPath, bytes]) -> Overlay:
    """Share what depends on contents only, since most files of most cases are the same."""
    overlay = Overlay(MemoryTree(files))
    kept = {key: s for key, s in _SHARED.sources.items() if files.get(key[0]) == key[1]}
    overlay.cache.sources.update(kept)
    if len(_SHARED.modules) > 500:
        _SHARED.modules.clear()
    overlay.cache.modules = _SHARED.modules
    return overlay


def share(version: str) -> None:
    """Outline a release's files once for all its cases."""
    overlay = Overlay(MemoryTree(base(version)))
    make_plan(overlay, SERIES)
    _SHARED.sources.clear()
    _SHARED.sources.update(overlay.cache.sources)


@dataclass(frozen=True)
class Place:
    """Point at a definition of a file that can be rewritten as text."""

    path: PurePosixPath
    source: Source
    block: Block

    @property
    def text(self) -> str:
        return self.source.cut(self.block)

    @property
    def owner(self) -> Block | None:
        """The class around it."""
        return next(
            (
                b
                for b in self.source.blocks
                if b.kind == "class" and b.start < self.block.start and self.block.end <= b.end
            ),
            None,
        )

    def rewritten(
        self, files: Mapping[PurePosixPath, bytes], text: str
    ) -> dict[PurePosixPath, bytes]:
        """Give the files with another text in the definition's place."""
        whole = self.source.text[: self.block.start] + text + self.source.text[self.block.end :]
        return {**files, self.path: whole.encode()}


@cache
def places(version: str) -> dict[str, Place]:
    """Return the definitions that the series edits or reads, by name.

    The handler stands under the name of the method, whatever this release calls it.
    """
    files, found = base(version), {}
    wanted = {name: name for name in (*FUNCTIONS, *LISTS)} | dict.fromkeys(
        symbols.HANDLER.names, HANDLER
    )
    for path, data in files.items():
        for name, key in wanted.items():
            kind = "assignment" if name in LISTS else "function"
            if name.encode() not in data or (name == PREFILL and path.name != "ascend_backend.py"):
                continue
            source = read_source(path, data)
            for block in source.named(name, kind):  # type: ignore[arg-type]
                if name == PREFILL and "self.use_fia" not in source.cut(block):
                    continue
                if name == HANDLER and symbols.ENABLED not in source.cut(block):
                    continue
                assert key not in found, (version, name)
                found[key] = Place(path, source, block)
    return found
