"""Rewrite the golden tables from what the program says now: `python -m tests.upstream.refresh`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.upstream.golden import EXPECTED, observe, write_expected
from tests.upstream.releases import FORKS, FORKS_NATIVE, RELEASES, RELEASES_NATIVE


def main() -> None:
    """Observe every release and fork, then replace the tables in one go."""
    trees, native = (*RELEASES, *FORKS), (*RELEASES_NATIVE, *FORKS_NATIVE)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = dict(zip(trees, pool.map(observe, trees), strict=True))
        hardened = pool.map(lambda version: observe(version, "all"), native)
        write_expected(entries, dict(zip(native, hardened, strict=True)))
    sys.stderr.write(
        f"{EXPECTED}: {len(entries)} releases and forks; now review it with git diff\n"
    )


if __name__ == "__main__":
    main()
