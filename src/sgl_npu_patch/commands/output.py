"""Write results to stdout, and progress and warnings to stderr."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from sgl_npu_patch.engine.errors import Refused


def write(*parts: str | bytes) -> None:
    """Write a report and flush it; a reader that has gone, such as `head`, is no error.

    Raises:
        Refused: the output cannot be written, for instance to a full disk.
    """
    try:
        for part in parts:
            if isinstance(part, str):
                sys.stdout.write(part)
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(part)
        sys.stdout.flush()
    except OSError as error:
        # Nothing more may fail on what is still buffered, least of all at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise Refused(f"the report cannot be written: {error.strerror}") from error


def write_error(text: str) -> None:
    """Write to stderr, whether or not anybody reads it."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def complain(message: str) -> None:
    """Print a message on stderr."""
    write_error(f"sgl-npu-patch: {message}\n")


def warn(message: str) -> None:
    """Print a warning on stderr."""
    complain(f"warning: {message}")


def report_progress(text: str) -> None:
    """Report progress on a terminal."""
    if sys.stderr.isatty():
        complain(f"{text} ...")
