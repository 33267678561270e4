"""Download a published release."""

from __future__ import annotations

from typing import Annotated

import typer

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import warn, write


def run(
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            show_default=False,
            help="A version of sglang, or NAME==VERSION for a fork.",
        ),
    ],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", show_default=False, help="A new or empty folder.")
    ],
) -> int:
    """Download a published release and unpack it as a source tree."""
    from sgl_npu_patch.fetch import fetch

    result = fetch(release, options.read_path(directory, "DIR"))
    for copy in result.copies:
        warn(f"{copy} is another copy of the package in {result.wheel}; it is left out")
    write(f"{result}\n")
    return exits.OK
