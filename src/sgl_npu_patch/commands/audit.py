"""List the operators on the NPU path that may depend on the batch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sgl_npu_patch.commands import exits, options
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.commands.trees import opened, warn_of_copies
from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.reports.formats import Target, render


def run(
    path: options.Tree = ".",
    model_file: Annotated[
        str | None,
        typer.Option(
            "--model-file",
            metavar="FILE",
            help="Look only at what this model uses, such as srt/models/qwen3.py.",
            show_default=False,
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show what is replaced or batch-invariant too.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Exit 1 only if there is a finding that this file does not have.",
            show_default=False,
        ),
    ] = None,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write the findings to the baseline's FILE.")
    ] = False,
    rev: options.Revision = None,
    output: Annotated[str, options.format_option("audit")] = "text",
) -> int:
    """List the operators on the NPU path that may depend on the batch and that nothing replaces."""
    from sgl_npu_patch.audit import baseline as baselines
    from sgl_npu_patch.audit.run import audit
    from sgl_npu_patch.reports import codec

    known = None if baseline is None else options.read_path(baseline, "FILE")
    if write_baseline and known is None:
        raise UsageError("--write-baseline needs --baseline FILE, which says where to")
    with opened(path, rev) as tree:
        warn_of_copies(tree)
        before = baselines.read(known) if known is not None and not write_baseline else {}
        rows = baselines.compare(baselines.keyed(audit(tree, model_file).calls, tree), before)
        if write_baseline and known is not None:
            baselines.write(known, rows)
        document = codec.audit_document(tree, rows, show_all=show_all)
        write(render(output, "audit", document, Target(sys.stdout, tree)))
    news = any(row.is_finding and not row.known for row in rows)
    return exits.NOT_AS_WANTED if news and not write_baseline else exits.OK
