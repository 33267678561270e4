"""Run a command on a simulated NPU."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from sgl_npu_patch.commands import exits
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import opened
from sgl_npu_patch.engine.errors import Interrupted, Refused, UsageError

GRACE: Final = 20
"""How many seconds an interrupted command has to end by itself."""


def run(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="An SGLang checkout, its python/ folder, the sglang package, or site-packages; a "
            "wheel, zip or source distribution.",
            show_default=False,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="What to run, after two hyphens; without it, the environment is printed.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run a command with a tree on its path, and a simulated NPU in place of Ascend's packages."""
    from sgl_npu_patch.engine.trees.directory import DirectoryTree
    from sgl_npu_patch.engine.trees.open import as_folder
    from sgl_npu_patch.simulator.environment import environment

    if find_spec("torch") is None:
        raise Refused("torch is not installed: install sgl-npu-patch[verify]")
    with opened(path) as tree, as_folder(tree) as root:
        variables = environment([(root / tree.package).parent])
        if command:
            return _run(command, {**os.environ, **variables})
        if not isinstance(tree, DirectoryTree):
            raise UsageError(f"{path} is no folder: its environment lasts as long as a COMMAND")
        write(*(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()))
        return exits.OK


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in a session of its own, and leave nothing of it behind.

    Raises:
        Interrupted: a signal came, which the command got too.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait()
    except Interrupted as ending:
        _send(process, ending.signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        raise
    finally:
        _send(process, signal.SIGKILL)
        process.wait()
    return code if code >= 0 else 128 - code


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the command and to all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
