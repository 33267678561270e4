"""Describe a fault, and put it into the files of a patched release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from sgl_npu_patch.codemods.upstream.project import PROJECT

NEWEST = "0.5.12.post1"
WITHOUT_GATE = "0.5.3.post2"
WITHHELD = "0.5.9"
"""Releases in which the radix cache gets a gate of ours, and stays off."""

PATHS = {
    "sampler": "srt/layers/sampler.py",
    "mode": "srt/batch_invariant_ops/batch_invariant_ops.py",
    "handler": "srt/server_args.py",
    "common": "srt/utils/common.py",
    "attention": "srt/hardware_backend/npu/attention/ascend_backend.py",
    "batch": "srt/managers/schedule_batch.py",
    "runner": "srt/model_executor/model_runner.py",
    "batch_info": "srt/sampling/sampling_batch_info.py",
    **{name: f"{PROJECT.vendor_folder}/{name}.py" for name in PROJECT.vendored},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        seam: what must be named by the checks that find it.
        found_by: checks of which at least one must fail.
        edits: texts of files that occur once, and what they become.
        also: other seams that it concerns as well.
    """

    seam: str
    found_by: tuple[str, ...]
    edits: tuple[tuple[str, str, str], ...]
    release: str = NEWEST
    also: tuple[str, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """The checks with their seam in front, where it is the fault's own."""
        return frozenset(c if "." in c else f"{self.seam}.{c}" for c in self.found_by)

    def files(self, texts: Mapping[PurePosixPath, str]) -> dict[PurePosixPath, bytes]:
        """Put it into a patched release.

        Args:
            texts: the files of the release.
        """
        changed: dict[PurePosixPath, str] = {}
        for name, old, new in self.edits:
            path = PurePosixPath("sglang", PATHS[name])
            text = changed.get(path, texts[path])
            assert text.count(old) == 1, f"{text.count(old)} times in {path}: {old!r}"
            changed[path] = text.replace(old, new)
        return {path: text.encode() for path, text in changed.items()}
