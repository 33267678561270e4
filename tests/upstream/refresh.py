"""Rewrite what is recorded of the releases: `python -m tests.upstream.refresh`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.upstream.bodies import BODIES, write_bodies
from tests.upstream.golden import EXPECTED, PATCHES, observe, write
from tests.upstream.releases import FORKS, RELEASES


def main() -> None:
    """Observe every release and fork, then replace the table and the edits in one go."""
    trees = (*RELEASES, *FORKS)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        write(dict(zip(trees, pool.map(observe, trees), strict=True)))
    write_bodies()
    written = f"{EXPECTED}, {PATCHES}, {BODIES}"
    sys.stderr.write(f"{written}: {len(trees)} trees; review them with git diff\n")


if __name__ == "__main__":
    main()
