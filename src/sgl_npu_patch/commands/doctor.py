"""Examine this machine."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import report_progress, write
from sgl_npu_patch.commands.trees import opened, warn_of_copies
from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.reports.formats import Target, render


def run(
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="Also show the statuses of this tree."),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Import the tree's own batch-invariant mode, and enter it."),
    ] = False,
    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="FILE",
            help="The Python that is to run SGLang; by default the one that runs this.",
            show_default=False,
        ),
    ] = sys.executable,
    output: Annotated[str, options.format_option("machine")] = "text",
) -> int:
    """Report whether this machine can run the result: torch, CANN, operators, environment."""
    from sgl_npu_patch.kit.doctor import examine
    from sgl_npu_patch.reports import codec

    if execute and path is None:
        raise UsageError("--execute imports the code of a tree: give its PATH")
    with ExitStack() as trees:
        tree = None
        if path is not None:
            tree = trees.enter_context(opened(path))
            warn_of_copies(tree)
        report_progress("looking at this machine")
        found = examine(tree, execute=execute, python=python)
        document = codec.machine_document(found, tree)
        write(render(output, "machine", document, Target(sys.stdout, tree)))
    if found.able is None:
        return exits.REFUSED
    return exits.OK if found.able else exits.NOT_AS_WANTED
