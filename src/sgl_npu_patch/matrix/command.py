"""Run the commands over many trees: select, judge, compare, report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.matrix import selection
from sgl_npu_patch.matrix.judge import BUG, Checks, Judge, Options
from sgl_npu_patch.matrix.run import judge_trees, processors
from sgl_npu_patch.matrix.selection import Wanted

if TYPE_CHECKING:
    from sgl_npu_patch.matrix.baseline import Known

FORMATS = ("text", "json", "junit", "sarif", "markdown", "github", "html")


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold what trees the command line asks for; ``kinds`` says which kinds came first."""

    repository: str | None
    kinds: Sequence[str]
    revs: Sequence[str]
    releases: Sequence[str]
    trees: Sequence[str]
    first_parent: bool
    touching: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Name a report and the file to write it to, None for stdout."""

    format: str
    path: Path | None


def matrix(
    asked: Asked,
    *,
    checks: Checks,
    baseline: Path | None,
    write_baseline: bool,
    jobs: int | None,
    cache: bool,
    reports: Sequence[str],
    output: str,
) -> int:
    """Judge all trees, compare them with the baseline, write the reports; give the exit code.

    Raises:
        Refused: what is asked for cannot be found, or a report cannot be written.
        UsageError: the options do not go together.
    """
    if write_baseline and baseline is None:
        raise UsageError("--write-baseline needs --baseline FILE, which says where to")
    # Stdout last: a report that cannot be written leaves nothing there.
    to_write = [*map(_report, reports), Report(output, None)]
    before = None
    if baseline is not None:
        from sgl_npu_patch.matrix import baseline as known

        before = None if write_baseline else known.read(baseline)
    with_diff = any(report.format == "html" for report in to_write)
    options = Options(checks=checks, diff=with_diff, cache=cache)
    with Judge(options) as judge:
        wanted = _select(asked, judge)
        with _progress(len(wanted)) as progress:
            document = judge_trees(judge, wanted, jobs or processors(), progress)
            if before is not None:
                changes = known.compare(before, document)
                document |= {"baseline": str(baseline), "changes": changes}
                if asked.repository:
                    _blame(judge, asked.repository, before, document)
    if write_baseline and baseline is not None:
        known.write(baseline, document["results"])
    for report in to_write:
        _write(report, document)
    return _exit_code(document, compared=before is not None, written=write_baseline)


def _blame(judge: Judge, place: str, before: Mapping[str, Known], document: dict[str, Any]) -> None:
    from sgl_npu_patch.matrix.baseline import facts_of
    from sgl_npu_patch.matrix.bisect import blame

    results = {result["name"]: result for result in document["results"]}
    good = [
        (seam, fact, revision)
        for facts, revision in (
            *((each.facts, each.revision) for each in before.values()),
            *((facts_of(each), each["tree"]["revision"]) for each in results.values()),
        )
        if revision
        for seam, fact in facts.items()
    ]
    with Judge(replace(judge.options, checks="", diff=False)) as other:
        blame(other, place, document["changes"], good)


def _report(given: str) -> Report:
    name, equals, path = given.partition("=")
    if name not in FORMATS or not equals or not path:
        raise UsageError(f"--report {given!r} is not FORMAT=FILE; formats are {', '.join(FORMATS)}")
    if path == "-":
        raise UsageError(f"what stdout gets is chosen by --format {name}, not by --report")
    return Report(name, Path(path))


def _select(asked: Asked, judge: Judge) -> tuple[Wanted, ...]:
    if not asked.kinds:
        raise UsageError("nothing is asked for: give --revs, --releases or --trees")
    if asked.repository is not None and "revs" not in asked.kinds:
        raise UsageError(f"which revisions of {asked.repository}? give --revs 'v*', or --trees")
    ranges = any(".." in pattern for pattern in asked.revs)
    if (asked.first_parent or asked.touching) and not ranges:
        raise UsageError("--first-parent and --touching are about ranges: give --revs A..B")
    wanted: list[Wanted] = []
    for kind in asked.kinds:
        if kind == "revs":
            wanted += _revisions(asked, judge)
        elif kind == "releases":
            from sgl_npu_patch.matrix.releases import select_releases

            wanted += select_releases(asked.releases)
        else:
            wanted += selection.select_folders(asked.trees)
    return selection.once(wanted)


def _revisions(asked: Asked, judge: Judge) -> list[Wanted]:
    if not asked.repository:
        raise UsageError("--revs needs a git repository: sgl-npu-patch matrix REPO --revs 'v*'")
    repository = judge.repository(asked.repository)
    paths: Sequence[str] = ()
    if asked.touching:
        ends = selection.ends_of(asked.revs)
        paths = selection.files_read(repository, ends)
    return list(
        selection.select_revisions(
            repository, asked.revs, first_parent=asked.first_parent, paths=paths
        )
    )


def _write(report: Report, document: dict[str, Any]) -> None:
    content = document
    if report.format != "html":
        # Only this one shows them, and they are large.
        results = [{k: v for k, v in r.items() if k != "diff"} for r in document["results"]]
        content = document | {"results": results}
    text = _render(report.format, content, sys.stdout if report.path is None else None)
    text = text if text.endswith("\n") else f"{text}\n"
    if report.path is None:
        sys.stdout.write(text)
        return
    try:
        report.path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Refused(f"{report.path}: cannot be written: {error.strerror}") from error


def _render(name: str, document: dict[str, Any], stream: IO[str] | None) -> str:
    if name == "json":
        from sgl_npu_patch.reports.document import render_rows

        return render_rows(document)
    if name == "text":
        from sgl_npu_patch.reports.matrix_text import render as render_text

        return render_text(document, stream)
    render: Callable[[dict[str, Any]], str] = import_module(f"sgl_npu_patch.reports.{name}").render
    return render(document)


def _exit_code(document: dict[str, Any], *, compared: bool, written: bool) -> int:
    """Say the worst that was found; with a baseline, whether anything differs from it."""
    results = document["results"]
    if any(result.get("error", {}).get("message") == BUG for result in results):
        return 70
    if written:
        return 0
    if compared:
        return int(bool(document["changes"]))
    if any(o["status"] == "conflict" for result in results for o in result["outcomes"]):
        return 3
    if any("error" in result for result in results):
        return 4
    return int(any(c["verdict"] == "fail" for r in results for c in r.get("checks", ())))


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """Show how many trees are done, to who watches."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("judging trees", total=count)
        yield lambda done: shown.update(task, completed=done)


def bisect(
    repository: Path, good: str, bad: str, seam: str | None, *, cache: bool, output: str
) -> tuple[str, tuple[str, ...]]:
    """Find the commits at which statuses change; give the report and what to warn of.

    Raises:
        Refused: a revision is unknown.
        UsageError: there is nothing to find.
    """
    from sgl_npu_patch.matrix.bisect import bisect as search

    with Judge(Options(cache=cache)) as judge:
        found = search(judge, str(repository), good, bad, seam)
    if output == "json":
        from sgl_npu_patch.reports.document import header, render_json

        counted = {"commits": found.commits, "judged": found.judged}
        remarks = {"remarks": list(found.remarks)}
        content = header() | {"changes": list(found.changes)} | remarks | counted
        return f"{render_json(content)}\n", found.remarks
    from sgl_npu_patch.reports.bisect import render

    text = render(found.changes, found.commits, found.judged, sys.stdout)
    return text, found.remarks
