"""Run the command: audit, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from sgl_npu_patch.audit import baseline
from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.engine.trees.directory import SourceTree


def run(
    tree: SourceTree,
    stream: IO[str],
    *,
    model_file: str | None,
    show_all: bool,
    known: Path | None,
    write_baseline: bool,
    output: str,
) -> bool:
    """Print the report; tell whether there is a finding that is not in the baseline.

    Raises:
        Refused: the tree or the baseline cannot be read, or there is no such model.
        UsageError: the options do not go together.
    """
    if write_baseline and known is None:
        raise UsageError("--write-baseline needs --baseline FILE, which says where to")
    before = baseline.read(known) if known is not None and not write_baseline else {}
    calls = audit(tree, model_file).calls
    keyed = [
        (call, (call.site.path.relative_to(tree.package).as_posix(), call.site.symbol, call.name))
        for call in calls
    ]
    rows = baseline.compare(keyed, before)
    if write_baseline and known is not None:
        baseline.write(known, rows)
    shown = [row for row in rows if show_all or row.is_finding]
    if output == "json":
        from sgl_npu_patch.reports.audit import render_document

        stream.write(render_document(tree, shown))
    elif output == "sarif":
        from sgl_npu_patch.engine.trees.open import prefix_of
        from sgl_npu_patch.reports.sarif import render_audit

        stream.write(f"{render_audit(shown, prefix_of(tree))}\n")
    else:
        from sgl_npu_patch.reports.audit import print_audit

        print_audit(tree, rows, shown, stream)
    return not write_baseline and any(row.is_finding and not row.known for row in rows)
