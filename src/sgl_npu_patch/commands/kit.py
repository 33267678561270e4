"""Write the measuring kit."""

from __future__ import annotations

from typing import Annotated

import typer

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import write


def run(
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write it.", show_default=False
        ),
    ],
) -> int:
    """Write a Python file that measures on a real machine what `verify` simulates."""
    from sgl_npu_patch.kit.render import write_kit

    path = options.read_path(output, "FILE")
    write_kit(path)
    write(f"wrote {path}; take it to a machine with an NPU and run: python {path.name}\n")
    return exits.OK
