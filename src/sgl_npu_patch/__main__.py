"""Run the command line, also as ``python -m sgl_npu_patch``; refuse a Python that is too old.

This file and the package's own `__init__` are valid in Python 3.9 and import nothing that is not.
"""

from __future__ import annotations

import sys

_NEEDED = (3, 10)
_REFUSED = 4


def main() -> None:
    """Run the command line."""
    if sys.version_info < _NEEDED:
        found, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, _NEEDED))
        sys.stderr.write(
            f"sgl-npu-patch: Python {found} is too old: Python {needed} or later is needed\n"
        )
        sys.exit(_REFUSED)
    from sgl_npu_patch.cli import main as run

    run()


if __name__ == "__main__":
    main()
