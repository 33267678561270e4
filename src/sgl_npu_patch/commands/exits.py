"""Name the exit codes of the contract, the same for every command."""

from __future__ import annotations

from typing import Final

OK: Final = 0
NOT_AS_WANTED: Final = 1
USAGE: Final = 2
CONFLICT: Final = 3
REFUSED: Final = 4
BUG: Final = 70
