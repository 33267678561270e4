"""Rewrite the golden table from what the program says: `python -m tests.upstream.refresh`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.upstream.golden import EXPECTED, observe, write_expected
from tests.upstream.releases import FORKS, RELEASES


def main() -> None:
    """Observe every release and fork, then replace the table in one go."""
    trees = (*RELEASES, *FORKS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = dict(zip(trees, pool.map(observe, trees), strict=True))
    write_expected(entries)
    sys.stderr.write(
        f"{EXPECTED}: {len(entries)} releases and forks; now review it with git diff\n"
    )


if __name__ == "__main__":
    main()
