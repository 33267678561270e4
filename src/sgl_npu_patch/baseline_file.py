"""Read and write a file of what is known, from which only news is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sgl_npu_patch.engine.errors import Refused

SCHEMA = 1
T = TypeVar("T")


def read_baseline(path: Path, command: str, take: Callable[[dict[str, Any]], T]) -> T:
    """Read the baseline of a command.

    Args:
        take: makes of the content what the command compares with.

    Raises:
        Refused: it is missing, or not what `write_baseline` writes.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["schema"] != SCHEMA:
            raise Refused(
                f"{path}: a baseline of format {content['schema']}, written by another version of "
                "sgl-npu-patch; write it anew with --write-baseline"
            )
        return take(content)
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read: {error.strerror}; --write-baseline makes a new one"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            f"{path}: is no baseline of {command} ({error}); write it anew with --write-baseline"
        ) from error


def write_baseline(path: Path, text: str) -> None:
    """Write a baseline.

    Raises:
        Refused: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from error
