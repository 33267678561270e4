"""Keep the code of a tree away from the user's files, processes and network.

An audit hook sees whatever Python code does and cannot be taken out again; what has no audit event
is replaced. It is no sandbox for machine code: the tree's Python files are all that is executed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.chflags": 1, "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1,
    "os.removexattr": 1, "os.rename": 2, "os.rmdir": 1, "os.setxattr": 1, "os.symlink": 2,
    "os.truncate": 1, "os.utime": 1, "shutil.move": 2, "shutil.rmtree": 1, "sqlite3.connect": 1,
}  # fmt: skip
"""Audit events that change files, and how many of their first arguments are paths."""
_FORBIDDEN = {
    "ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function", "os.exec",
    "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.startfile",
    "os.system", "pty.spawn", "signal.pthread_kill", "socket.bind", "socket.connect",
    "socket.getaddrinfo", "socket.gethostbyname", "socket.sendmsg", "socket.sendto",
    "subprocess.Popen", "syslog.syslog", "webbrowser.open",
}  # fmt: skip
_UNSEEN = (
    ("os", "mkfifo"), ("os", "mknod"), ("posix", "mkfifo"), ("posix", "mknod"),
    ("_posixsubprocess", "fork_exec"), ("torch._C", "PyTorchFileWriter"), ("torch", "from_file"),
)  # fmt: skip
"""What writes files or starts processes without an audit event."""


def forbid_writing(*, outside: Path) -> None:
    """Raise PermissionError from now on where this process would reach beyond one folder."""
    allowed = os.path.realpath(outside)

    def inside(path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return real == allowed or real.startswith(allowed + os.sep) or real == os.devnull

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if path is None or isinstance(path, int):
                return
            # What is opened as a folder can stand for it in calls whose events do not name it.
            writes = flags & _WRITING or (mode is None and os.path.isdir(path))  # noqa: PTH112
            if writes and not inside(path):
                raise PermissionError(f"the checked code may not write to {path}")
            if os.path.basename(os.path.realpath(os.fsdecode(path))) == "environ":  # noqa: PTH119
                raise PermissionError(f"the checked code may not read {path}")
        elif event in _PATHS:
            for path in arguments[: _PATHS[event]]:
                # A descriptor may be that of any file that was opened for reading.
                if isinstance(path, int) or (path is not None and not inside(path)):
                    raise PermissionError(f"the checked code may not change {path}")
        elif event in _FORBIDDEN:
            raise PermissionError(f"the checked code may not use {event}")

    for module, name in _UNSEEN:
        if hasattr(sys.modules.get(module), name):
            setattr(sys.modules[module], name, _refusal(f"{module}.{name}"))
    sys.addaudithook(hook)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(f"the checked code may not use {name}")

    return refuse
