"""Find the commits at which statuses change."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import warn, write
from sgl_npu_patch.commands.trees import all_seams
from sgl_npu_patch.reports.formats import Target, render


def run(
    repository: Annotated[
        str,
        typer.Argument(
            metavar="[REPO]",
            help="A git repository; by default that of the current folder.",
            show_default=False,
        ),
    ] = ".",
    *,
    good: Annotated[
        str, typer.Option("--good", metavar="REV", help="Where to begin.", show_default=False)
    ],
    bad: Annotated[
        str, typer.Option("--bad", metavar="REV", help="Where to end.", show_default=False)
    ],
    seam: Annotated[
        str | None,
        typer.Option("--seam", metavar="SEAM", help="Look at this seam alone.", show_default=False),
    ] = None,
    no_cache: options.NoCache = False,
    output: Annotated[str, options.format_option("bisect")] = "text",
) -> int:
    """Find the commits at which the statuses of seams change between two revisions."""
    from sgl_npu_patch.matrix.bisect import bisect
    from sgl_npu_patch.matrix.content import Options
    from sgl_npu_patch.matrix.evaluate import Evaluator
    from sgl_npu_patch.matrix.repositories import Repositories
    from sgl_npu_patch.reports import codec

    if seam is not None:
        from sgl_npu_patch.engine.plan import check_known

        check_known(all_seams(), [seam])
    path = options.read_path(repository, "REPO")
    with Repositories() as repositories:
        evaluator = Evaluator(Options(cache=not no_cache), repositories)
        found = bisect(evaluator, str(path), good, bad, seam)
    for remark in found.remarks:
        warn(remark)
    document = codec.bisect_document(found.changes, found.remarks, found.commits, found.judged)
    write(render(output, "bisect", document, Target(sys.stdout)))
    return exits.OK
