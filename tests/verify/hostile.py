"""Declare checks that do what a tree's code must not be able to do, or get away with."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from sgl_npu_patch.verify.behaviour import Subject, check
from sgl_npu_patch.verify.findings import NotApplicable

TRAP = "trap"
"""A folder of the subject's package; nothing in it may change."""


def _send() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(b"x", ("127.0.0.1", 9))


def _connect() -> None:
    with socket.socket() as link:
        link.connect(("127.0.0.1", 9))


def _save(trap: Path) -> None:
    torch.save(torch.ones(1), str(trap / "new"))


def _by_descriptor(trap: Path) -> None:
    folder = os.open(trap, os.O_RDONLY)
    os.close(os.open("kept", os.O_WRONLY | os.O_TRUNC, dir_fd=folder))


def _mode_by_descriptor(trap: Path) -> None:
    with (trap / "kept").open() as file:
        os.fchmod(file.fileno(), 0)


def _rename_in(trap: Path) -> None:
    Path("mine").touch()
    Path("mine").rename(trap / "new")


def _from_below(trap: Path) -> None:
    os.chdir(trap)
    Path("new").write_text("x")


def _through_a_link(trap: Path) -> None:
    Path("link").symlink_to(trap)
    Path("link/new").write_text("x")


ATTEMPTS: dict[str, Callable[[Path], Any]] = {
    "open": lambda trap: (trap / "new").open("w"),
    "append": lambda trap: (trap / "kept").open("a"),
    "os_open": lambda trap: os.open(trap / "new", os.O_WRONLY | os.O_CREAT),
    "os_open_in_folder": _by_descriptor,
    "relative_path": _from_below,
    "symlink": _through_a_link,
    "pathlib_write": lambda trap: (trap / "new").write_bytes(b"x"),
    "pathlib_touch": lambda trap: (trap / "new").touch(),
    "mkdir": lambda trap: (trap / "new").mkdir(),
    "unlink": lambda trap: (trap / "kept").unlink(),
    "chmod": lambda trap: (trap / "kept").chmod(0),
    "fchmod": _mode_by_descriptor,
    "utime": lambda trap: os.utime(trap / "kept", (0, 0)),
    "truncate": lambda trap: os.truncate(trap / "kept", 0),
    "copy_into": lambda trap: shutil.copy(trap / "kept", trap / "new"),
    "rmtree": shutil.rmtree,
    "move_out": lambda trap: shutil.move(str(trap / "kept"), "moved"),
    "rename_out": lambda trap: (trap / "kept").rename("renamed"),
    "rename_in": _rename_in,
    "hard_link": lambda trap: os.link(trap / "kept", "linked"),
    "mkfifo": lambda trap: os.mkfifo(trap / "new"),
    "sqlite": lambda trap: sqlite3.connect(trap / "new"),
    "torch_save": _save,
    "environment_of_the_parent": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "subprocess": lambda trap: subprocess.run(["touch", trap / "new"], check=True),
    "system": lambda trap: os.system(f"touch {trap / 'new'}"),  # noqa: S605
    "fork": lambda _: os.fork(),
    "exec": lambda _: os.execv("/bin/true", ["true"]),  # noqa: S606
    "spawn": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "multiprocessing": lambda _: multiprocessing.get_context("spawn").Process(target=id).start(),
    "kill": lambda _: os.kill(os.getppid(), 0),
    "connect": lambda _: _connect(),
    "send": lambda _: _send(),
    "lookup": lambda _: socket.getaddrinfo("localhost", 9),
    "ctypes": lambda _: ctypes.CDLL(None).abs(1),
}


def _declare(name: str, attempt: Callable[[Path], Any]) -> None:
    def run(subject: Subject) -> None:
        """The guard refuses it."""
        try:
            attempt(subject.package / TRAP)
        except PermissionError as error:
            if "the checked code may not" not in str(error):
                raise
        else:
            raise AssertionError("it was not refused")

    run.__name__ = f"refused_{name}"
    check("hostile")(run)


for _name, _attempt in ATTEMPTS.items():
    _declare(_name, _attempt)


@check("hostile")
def allowed(subject: Subject) -> None:
    """What a check needs is not refused."""
    Path("file").write_text("x")
    Path("folder").mkdir()
    shutil.rmtree("folder")
    assert (subject.package / TRAP / "kept").read_text() == "kept"
    with Path(os.devnull).open("w") as file:
        file.write("x")


@check("hostile")
def environment(subject: Subject) -> None:
    """Nothing of the user's is in the environment."""
    raise NotApplicable(repr(sorted(os.environ.items())) + str(Path.home()) + str(Path.cwd()))


@check("hostile")
def prints(subject: Subject) -> None:
    """What is printed is no verdict."""
    for line in ('{"verdict": "pass", "message": "x"}', '{"begins": "hostile.passes"}'):
        print(line, flush=True)  # noqa: T201
        sys.__stdout__.write(line + "\n")  # type: ignore[union-attr]
        os.write(1, line.encode() + b"\n")
    raise AssertionError("it printed")


@check("hostile")
def passes(subject: Subject) -> None:
    """It passes."""


@check("hostile")
def exits(subject: Subject) -> None:
    """It leaves by sys.exit(0)."""
    sys.exit(0)


@check("hostile")
def interrupts(subject: Subject) -> None:
    """It raises KeyboardInterrupt."""
    raise KeyboardInterrupt


@check("hostile")
def leaves(subject: Subject) -> NoReturn:
    """It ends the process with success."""
    os._exit(0)


@check("hostile")
def aborts(subject: Subject) -> NoReturn:
    """It aborts."""
    os.abort()


@check("hostile")
def hangs(subject: Subject) -> None:
    """It never ends."""
    while True:
        time.sleep(0.05)


@check("hostile")
def starts_a_thread(subject: Subject) -> None:
    """It passes, and leaves a thread that never ends."""
    threading.Thread(target=lambda: time.sleep(1000)).start()
