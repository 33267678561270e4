"""Build the command line, run one command, and exit with a code of the contract."""

from __future__ import annotations

import codecs
import gc
import os
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, NoReturn

import typer

from sgl_npu_patch import __version__
from sgl_npu_patch.commands import exits, helped
from sgl_npu_patch.commands.output import complain, write
from sgl_npu_patch.engine.errors import Interrupted, Refused, UsageError

COMMANDS = (
    "apply",
    "status",
    "diff",
    "verify",
    "matrix",
    "bisect",
    "doctor",
    "kit",
    "simulate",
    "audit",
    "list",
    "explain",
    "fetch",
)
"""In the order of the help; each is a module of commands/."""

_WIDEST = 1000
"""Columns of help, if the terminal has as many: click stops at 80 unless told otherwise."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with some commands; importing each takes time."""
    names = tuple(names)
    app = typer.Typer(
        name="sgl-npu-patch",
        cls=helped.Group,
        help="Patch SGLang so that --enable-deterministic-inference works on Ascend NPUs.",
        epilog=(
            "Exit codes: 0 as wanted, 1 it is not, 2 usage, 3 conflict, 4 refused, "
            "70 a bug of ours, 130 and 143 interrupted."
        ),
        no_args_is_help=True,
        # A shell asks without a command.
        add_completion=len(names) > 1,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": _WIDEST,
        },
    )
    app.callback()(_options)
    for name in names:
        module = import_module(f"sgl_npu_patch.commands.{name}")
        app.command(name, cls=getattr(module, "Command", helped.Command))(module.run)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        write(f"sgl-npu-patch {__version__}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_show_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> NoReturn:
    """Run the command line and exit with one of the codes of the contract."""
    # Syntax trees are large and live until the end: collecting cycles would only cost time.
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)
    _prepare_streams()
    try:
        app = make_app(_needed(sys.argv[1:2]))
        code = app(standalone_mode=False)
    except Exception as error:  # noqa: BLE001  # every ending has an exit code of its own
        code = _exit_code(error)
    except SystemExit:
        # How typer ends when the reader of its help has gone.
        code = exits.OK
    try:
        write()
    except Refused as error:
        code = _exit_code(error)
    gc.freeze()
    sys.exit(code if isinstance(code, int) else exits.OK)


def _needed(first: list[str]) -> Iterable[str]:
    """Return the commands to prepare: all of them take longer than reading a file of the tree."""
    if first in (["--version"], ["-V"]):
        return ()
    return first if first and first[0] in COMMANDS else COMMANDS


def _prepare_streams() -> None:
    """Make every path printable, and printing harmless where the caller closed a stream."""
    codecs.register_error(__name__, _printable)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8", closefd=False))
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=__name__)


def _printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return the bytes of a path as they came, and escape what else cannot be encoded."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _exit_code(error: Exception) -> int:
    """Return the exit code of an ending, and print its message."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, Refused):
        code, message = exits.REFUSED, str(error)
    elif isinstance(error, UsageError):
        code, message = exits.USAGE, str(error)
    elif isinstance(error, Interrupted):
        code, message = 128 + error.signum, str(error)
    elif hasattr(error, "exit_code") and hasattr(error, "show"):
        error.show()
        return exits.USAGE
    elif isinstance(error, OSError):
        code, message = exits.REFUSED, f"{error.filename or 'input or output'}: {error.strerror}"
    else:
        import traceback

        traceback.print_exc()
        code = exits.BUG
        message = (
            "this is a bug of sgl-npu-patch; no file is half written; "
            "please report it with what is above"
        )
    complain(message)
    return code


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)
