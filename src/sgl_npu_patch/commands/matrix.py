"""Show the statuses of many trees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sgl_npu_patch.commands import exits, helped, options
from sgl_npu_patch.commands.output import write
from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.reports.formats import SHOWS_DIFFS, Target, formats_of, render

_ORDER = "order of kinds"
_TREES = "--trees"


class Command(helped.Command):
    """Give --trees all values up to the next option, so that a shell's pattern can name them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option, of which click takes one value at a time."""
        spread: list[str] = []
        taking = False
        for arg in args:
            if arg.startswith("-"):
                taking = arg == _TREES
            elif taking and spread[-1] != _TREES:
                spread.append(_TREES)
            spread.append(arg)
        return super().parse_args(ctx, spread)


def _in_order(
    context: typer.Context, parameter: typer.CallbackParam, value: list[str] | None
) -> list[str] | None:
    """Note which kinds of trees were asked for first."""
    if value:
        context.meta.setdefault(_ORDER, []).append(parameter.name)
    return value


def run(
    context: typer.Context,
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPO]",
            help="The git repository that --revs is about; by default, without --trees, that of "
            "the current folder.",
        ),
    ] = None,
    revs: Annotated[
        list[str] | None,
        typer.Option(
            "--revs",
            metavar="GLOB|A..B|REV",
            help="Tags and branches that match, the commits of a range, or one revision; may be "
            "repeated.",
            callback=_in_order,
        ),
    ] = None,
    releases: Annotated[
        list[str] | None,
        typer.Option(
            "--releases",
            metavar="SPECIFIER",
            help="Published releases that fit, such as '>=0.5.3rc2,<0.5.13'; may be repeated.",
            callback=_in_order,
        ),
    ] = None,
    trees: Annotated[
        list[str] | None,
        typer.Option(
            _TREES,
            metavar="DIR...",
            help="Folders or archives, as `status` takes them: all up to the next option; may be "
            "repeated.",
            callback=_in_order,
        ),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow ranges along first parents only.")
    ] = False,
    touching: Annotated[
        bool,
        typer.Option(
            "--touching",
            help="Of ranges, take only commits that change a file which the series reads.",
        ),
    ] = False,
    static: Annotated[
        bool, typer.Option("--static", help="Add the checks that execute nothing of a tree.")
    ] = False,
    behaviour: Annotated[
        bool, typer.Option("--verify", help="Add all checks of `verify`; slow.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Exit 1 if anything differs from this file, else 0.",
            show_default=False,
        ),
    ] = None,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write what is found to the baseline's FILE.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="How many processes to use; by default as many as there are processors.",
            show_default=False,
        ),
    ] = None,
    no_cache: options.NoCache = False,
    report: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="FORMAT=FILE",
            help="Write this report too; may be repeated.",
        ),
    ] = None,
    output: Annotated[str, options.format_option("matrix")] = "text",
) -> int:
    """Show the statuses of many revisions, releases and folders; write nothing to them."""
    from sgl_npu_patch.matrix.command import matrix
    from sgl_npu_patch.matrix.content import Options
    from sgl_npu_patch.matrix.selection import Selection

    files = [_report_file(each) for each in report or ()]
    shows_diffs = not SHOWS_DIFFS.isdisjoint([output, *(name for name, _ in files)])
    if repository is None and revs and not trees:
        repository = "."
    document = matrix(
        Selection(
            repository=repository,
            kinds=context.meta.get(_ORDER, []),
            revs=revs or [],
            releases=releases or [],
            trees=trees or [],
            first_parent=first_parent,
            touching=touching,
        ),
        Options(
            checks="verify" if behaviour else "static" if static else "",
            diff=shows_diffs,
            cache=not no_cache,
        ),
        baseline=None if baseline is None else options.read_path(baseline, "FILE"),
        write_baseline=write_baseline,
        jobs=jobs,
        watch=_progress,
    )
    # Stdout last: a report that cannot be written leaves nothing there.
    for name, path in files:
        _write_file(path, _render(name, document, Target()))
    write(_render(output, document, Target(sys.stdout)))
    return _exit_code(document, written=write_baseline)


def _report_file(given: str) -> tuple[str, Path]:
    name, equals, path = given.partition("=")
    formats = formats_of("matrix")
    if name not in formats or not equals or not path:
        raise UsageError(f"--report {given!r} is not FORMAT=FILE; formats are {', '.join(formats)}")
    if path == "-":
        raise UsageError(f"what stdout gets is chosen by --format {name}, not by --report")
    return name, Path(path)


def _render(name: str, document: dict[str, Any], target: Target) -> str:
    if name not in SHOWS_DIFFS:
        # They are large.
        results = [{k: v for k, v in r.items() if k != "diff"} for r in document["results"]]
        document = document | {"results": results}
    return render(name, "matrix", document, target)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from error


def _exit_code(document: dict[str, Any], *, written: bool) -> int:
    """Return the worst that was found; with a baseline, whether anything differs from it."""
    from sgl_npu_patch.matrix.evaluate import BUG

    results: Sequence[dict[str, Any]] = document["results"]
    if any(result.get("error", {}).get("message") == BUG for result in results):
        return exits.BUG
    if written:
        return exits.OK
    if "baseline" in document:
        return exits.NOT_AS_WANTED if document["changes"] else exits.OK
    if any(o["status"] == "conflict" for result in results for o in result["outcomes"]):
        return exits.CONFLICT
    if any("error" in result for result in results):
        return exits.REFUSED
    failed = any(c["verdict"] == "fail" for r in results for c in r.get("checks", ()))
    return exits.NOT_AS_WANTED if failed else exits.OK


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many trees are done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("evaluating trees", total=count)
        yield lambda done: shown.update(task, completed=done)
