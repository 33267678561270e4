"""What a process that runs checks does for `isolation`, which started it.

It reads one JSON request on stdin, and writes one JSON line an event. The first names all checks
(``{"declared": [{"id", "seam", "meaning", "gap"}]}``), the others one that begins (``{"begins":
ID}``) or its verdict. Each stands behind a word that only the two processes know.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], None]


def begin() -> tuple[dict[str, Any], Answer]:
    """Return the request, and what writes an event; the process ends when its time is over."""
    request: dict[str, Any] = json.load(sys.stdin)
    # Whatever the tree prints must not be taken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ends a process whose parent was killed, and shows where a check hangs.
    faulthandler.dump_traceback_later(request["seconds"], exit=True)

    def answer(event: dict[str, Any]) -> None:
        print(request["word"] + json.dumps(event), file=answers, flush=True)

    return request, answer
