"""Rewrite the golden table from what the program says now: `python -m tests.upstream.refresh`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.upstream.golden import EXPECTED, observe, write_expected
from tests.upstream.releases import RELEASES


def main() -> None:
    """Observe every release, then replace the table in one go."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = dict(zip(RELEASES, pool.map(observe, RELEASES), strict=True))
    write_expected(entries)
    sys.stderr.write(f"{EXPECTED}: {len(entries)} releases; now review it with git diff\n")


if __name__ == "__main__":
    main()
