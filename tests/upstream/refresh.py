"""Rewrite what is recorded of the releases: `python -m tests.upstream.refresh`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.upstream.golden import EXPECTED, PATCHES, observe, write
from tests.upstream.releases import FORKS, RELEASES


def main() -> None:
    """Observe every release and fork, then replace the table and the edits in one go."""
    trees = (*RELEASES, *FORKS)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        write(dict(zip(trees, pool.map(observe, trees), strict=True)))
    sys.stderr.write(f"{EXPECTED}, {PATCHES}: {len(trees)} trees; review them with git diff\n")


if __name__ == "__main__":
    main()
