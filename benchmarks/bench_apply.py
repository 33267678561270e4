"""Compare the program's run times with those of the least that could do its work.

Whole processes, run in turn so that a change in the speed of the machine meets both; medians.
Exits 1 if a ratio is over its limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.upstream.releases import copy_tree, release_tree

RELEASE = "0.5.12.post1"

PARSE = """\
import sys
import libcst
with open(sys.argv[1], "rb") as file:
    libcst.parse_module(file.read())
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two commands, whose preparation is not measured."""

    title: str
    prepare: Callable[[], list[str]]
    baseline: Callable[[], list[str]]
    limit: float

    def ratio(self, repeats: int) -> float:
        """Run both `repeats` times in turn, print the medians, return the ratio."""
        ours, theirs = [], []
        for _ in range(repeats):
            ours.append(seconds(self.prepare()))
            theirs.append(seconds(self.baseline()))
        ratio = median(ours) / median(theirs)
        print(
            f"{self.title:<40} {median(ours) * 1000:7.0f} ms {median(theirs) * 1000:7.0f} ms"
            f"   {ratio:5.2f}  (limit {self.limit})"
        )
        return ratio


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    """Print one line a comparison: ours, the baseline, the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats: int = parser.parse_args().repeats
    # With it set, every run would compile our sources anew, but not the dependencies'.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory:
        copies = iter(copy_tree(RELEASE, Path(directory, str(n))) for n in range(2 * repeats + 3))
        patched = next(copies)
        seconds(["-m", "sgl_npu_patch", "apply", str(patched)])
        arguments = release_tree(RELEASE) / "sglang" / "srt" / "server_args.py"
        comparisons = (
            Comparison(
                f"apply {RELEASE} / libcst parse",
                lambda: ["-m", "sgl_npu_patch", "apply", str(next(copies))],
                lambda: ["-c", PARSE, str(arguments)],
                1.1,
            ),
            Comparison(
                "--help / import typer",
                lambda: ["-m", "sgl_npu_patch", "--help"],
                lambda: ["-c", "import typer"],
                2.0,
            ),
            Comparison(
                f"verify --static {RELEASE} / apply",
                lambda: ["-m", "sgl_npu_patch", "verify", "--static", str(patched)],
                lambda: ["-m", "sgl_npu_patch", "apply", str(next(copies))],
                3.0,
            ),
        )
        # Once unmeasured: an installed program is compiled, and files are in the page cache.
        for comparison in comparisons:
            seconds(comparison.prepare())
            seconds(comparison.baseline())
        ratios = [comparison.ratio(repeats) for comparison in comparisons]
    limits = [comparison.limit for comparison in comparisons]
    return int(any(ratio > limit for ratio, limit in zip(ratios, limits, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
