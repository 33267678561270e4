"""Keep the code of a tree away from the user's files, processes and network.

An audit hook sees whatever Python code does and cannot be taken out again. It is no sandbox for
machine code; the tree's Python files are all that is executed here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.rename": 2,
    "os.rmdir": 1, "os.symlink": 2, "os.truncate": 1, "os.utime": 1, "os.setxattr": 1,
    "os.removexattr": 1, "shutil.rmtree": 1, "shutil.move": 2,
}  # fmt: skip
"""Audit events that change files, and how many of their first arguments are paths."""
_FORBIDDEN = (
    "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.system", "pty.spawn", "socket.bind", "socket.connect", "socket.sendto",
    "subprocess.Popen", "webbrowser.open",
)  # fmt: skip


def forbid_writing(*, outside: Path) -> None:
    """Raise PermissionError from now on where this process would reach beyond one folder."""
    allowed = os.path.realpath(outside)

    def inside(path: Any) -> bool:
        if isinstance(path, int):
            return True
        real = os.path.realpath(os.fsdecode(path))
        return real == allowed or real.startswith(allowed + os.sep) or real == os.devnull

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if path is not None and flags & _WRITING and not inside(path):
                raise PermissionError(f"the checked code may not write to {path}")
        elif event in _PATHS:
            for path in arguments[: _PATHS[event]]:
                if path is not None and not inside(path):
                    raise PermissionError(f"the checked code may not change {path}")
        elif event in _FORBIDDEN:
            raise PermissionError(f"the checked code may not use {event}")

    sys.addaudithook(hook)
