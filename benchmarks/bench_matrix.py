"""Compare runs over many trees with one `apply`: times as ratios, and the memory that they take.

Whole processes, run in turn so that a change in the speed of the machine meets both; medians.
Exits 1 if a ratio or the memory is over its limit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.upstream.releases import RELEASES, copy_tree, release_tree
from tests.upstream.repository import release_repository

RELEASE = "0.5.12.post1"
PROGRAM = [sys.executable, "-m", "sgl_npu_patch"]
COMMITS = 1000
MEMORY = 400
"""Megabytes, of all processes together."""

Command = Callable[[], list[str]]


def add_history(repository: Path, branch: str, file: str) -> str:
    """Add commits to a release that each change one file, which the series does not read."""
    lines = []
    for number in range(COMMITS):
        text = f"NUMBER = {number}\n"
        lines += [f"commit refs/heads/{branch}", "committer x <x@localhost> 1800000000 +0000"]
        lines += ["data 1\nx", *([f"from refs/tags/v{RELEASE}^0"] if not number else [])]
        lines += [f"M 100644 inline {file}", f"data {len(text)}\n{text}"]
    importing = ["git", "-C", str(repository), "fast-import", "--quiet"]
    subprocess.run(importing, check=True, input="\n".join([*lines, ""]).encode())
    return f"v{RELEASE}..{branch}"


def seconds(command: list[str], allowed: tuple[int, ...] = (0,)) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    assert done.returncode in allowed, command
    return time.perf_counter() - start


def peak_memory(command: list[str]) -> float:
    """Return the most megabytes that a process and its descendants held at once. Linux only.

    Files that are mapped, such as git's packs, do not count: the system drops them as it likes.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.05):
            most = max(most, sum(map(_held, _family(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    done.set()
    watcher.join()
    return most


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _held(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0


def main() -> int:
    """Print one line a comparison: ours, the baseline, the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats: int = parser.parse_args().repeats
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    trees = {version: release_tree(version) for version in RELEASES}
    with tempfile.TemporaryDirectory() as directory:
        # The repository as it is made must not be written to; a clone comes packed like this.
        repository = Path(directory, "releases.git")
        shutil.copytree(release_repository(*trees), repository)
        outside = add_history(repository, "outside", "docs/number.py")
        inside = add_history(repository, "inside", "python/sglang/srt/number.py")
        packing = ["git", "-C", str(repository), "repack", "-adfq"]
        subprocess.run(packing, check=True)
        cache = Path(directory, "cache")
        os.environ["SGL_NPU_PATCH_CACHE"] = str(cache)
        copies = (copy_tree(RELEASE, Path(directory, str(n))) for n in range(10**6))

        def matrix(revisions: str) -> list[str]:
            return [*PROGRAM, "matrix", str(repository), "--revs", revisions]

        def forget() -> None:
            shutil.rmtree(cache, ignore_errors=True)

        def apply() -> list[str]:
            return [*PROGRAM, "apply", str(next(copies))]

        def log(revisions: str) -> list[str]:
            return ["git", "-C", str(repository), "log", revisions]

        failed = False
        for title, revisions, cold, allowed, limit in (
            (f"{len(RELEASES)} releases cold / apply", "v*", True, (0, 4), 8.0),
            (f"{len(RELEASES)} releases warm / apply", "v*", False, (0, 4), 1.0),
            (f"{COMMITS} commits outside cold / log + apply", outside, True, (0,), 1.0),
            (f"{COMMITS} commits outside warm / log + apply", outside, False, (0,), 1.0),
            (f"{COMMITS} commits inside cold / log + apply", inside, True, (0,), 1.0),
            (f"{COMMITS} commits inside warm / log + apply", inside, False, (0,), 1.0),
        ):
            ours, theirs = [], []
            seconds(matrix(revisions), allowed)
            for _ in range(repeats):
                if cold:
                    forget()
                ours.append(seconds(matrix(revisions), allowed))
                base = seconds(apply())
                theirs.append(base + (seconds(log(revisions)) if ".." in revisions else 0))
            ratio = median(ours) / median(theirs)
            failed |= ratio > limit
            print(
                f"{title:<45} {median(ours) * 1000:7.0f} ms {median(theirs) * 1000:7.0f} ms"
                f"   {ratio:5.2f}  (limit {limit})",
                flush=True,
            )
        forget()
        held = peak_memory(matrix("v*"))
        print(f"{'memory of all processes, cold':<45} {held:7.0f} MB  (limit {MEMORY})")
    return int(failed or held > MEMORY)


if __name__ == "__main__":
    sys.exit(main())
