"""Give tests the published SGLang releases, downloaded once and cached.

The cache is `SGL_NPU_PATCH_CACHE`, or `sgl-npu-patch` in the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from filelock import FileLock

from sgl_npu_patch.fetch import fetch

RELEASES_TOO_OLD = ("0.5.2", "0.5.3rc0")
RELEASES_PATCHED = (
    "0.5.3rc2",
    "0.5.3",
    "0.5.3.post1",
    "0.5.3.post2",
    "0.5.3.post3",
    "0.5.4",
    "0.5.4.post1",
    "0.5.4.post2",
    "0.5.4.post3",
    "0.5.5",
    "0.5.5.post1",
    "0.5.5.post2",
    "0.5.5.post3",
    "0.5.6",
    "0.5.6.post1",
    "0.5.6.post2",
    "0.5.7",
    "0.5.8",
    "0.5.8.post1",
    "0.5.9",
    "0.5.10rc0",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
)
RELEASES_NATIVE = (
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
RELEASES = (*RELEASES_TOO_OLD, *RELEASES_PATCHED, *RELEASES_NATIVE)

# Published under other names: the oldest version, the newest, and two between them.
FORKS_PATCHED = (
    "sglang-kt==0.5.2",
    "sglang-kt==0.6.1",
    "sglang-kt==0.6.3",
    "sglang-kt==0.7.2",
    "lsglang==1.3.1",
    "power-sglang-cuda124==1.0.2",
)
FORKS_NATIVE = ("lsglang==1.4.7", "lsglang==1.5.3", "lsglang==1.6.5")
FORKS = (*FORKS_PATCHED, *FORKS_NATIVE)

# Raise it when `fetch` lays releases out differently: caches of before are then refilled.
LAYOUT = 1


@cache
def release_tree(version: str) -> Path:
    """Return the pristine tree of a release, which nobody may write to; use `copy_tree` for that.

    `version` is one of sglang, or `NAME==VERSION` for a fork, as `fetch` takes it.

    Any number of processes may ask at once: one downloads, the others wait. A release that cannot
    be downloaded fails the test that asked, and is never skipped.
    """
    releases = _cache_directory() / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    name = version.replace("==", "-") if "==" in version else f"sglang-{version}"
    tree = releases / name
    # Written after the tree, so that a tree without it was cut short.
    marker = releases / f"{name}.complete"
    with FileLock(releases / f"{name}.lock"):
        if not (marker.is_file() and marker.read_text() == _marker_text(tree)):
            marker.unlink(missing_ok=True)
            if tree.exists():
                shutil.rmtree(tree)
            fetch(version, tree)
            marker.write_text(_marker_text(tree))
    return tree


def copy_tree(version: str, into: Path) -> Path:
    """Copy what the program may read of a release (sources, metadata) to `into` and return it."""
    pristine = release_tree(version)
    for folder, _, names in os.walk(pristine):
        target = into / Path(folder).relative_to(pristine)
        wanted = [name for name in names if name.endswith(".py") or folder.endswith(".dist-info")]
        if wanted:
            target.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            # Not a hard link: a program that wrote through it would spoil the cache silently.
            shutil.copyfile(Path(folder, name), target / name)
    return into


def _cache_directory() -> Path:
    chosen = os.environ.get("SGL_NPU_PATCH_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sgl-npu-patch"


def _marker_text(tree: Path) -> str:
    files = sum(len(names) for _, _, names in os.walk(tree))
    return f"layout {LAYOUT}, {files} files\n"
