"""Parse the command line, run one command and give its exit code."""

from __future__ import annotations

import codecs
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Interrupted, Refused, UsageError

if TYPE_CHECKING:
    from typer.models import CommandInfo

    from sgl_npu_patch.engine.plan import Plan
    from sgl_npu_patch.engine.seam import Seam
    from sgl_npu_patch.engine.trees.directory import SourceTree
    from sgl_npu_patch.verify.run import Verified

OK, NOT_AS_WANTED, USAGE, CONFLICT, REFUSED, BUG = 0, 1, 2, 3, 4, 70


class Format(str, Enum):
    """Choose how a command reports."""

    text = "text"
    json = "json"


class CheckFormat(str, Enum):
    """Choose how checks are reported."""

    text = "text"
    json = "json"
    junit = "junit"
    sarif = "sarif"


class AuditFormat(str, Enum):
    """Choose how an audit is reported."""

    text = "text"
    json = "json"
    sarif = "sarif"


class MatrixFormat(str, Enum):
    """Choose how a run over many trees is reported."""

    text = "text"
    json = "json"
    junit = "junit"
    sarif = "sarif"
    markdown = "markdown"
    github = "github"
    html = "html"


_ORDER = "order of kinds"
_TREES = "--trees"


class _MatrixCommand(TyperCommand):
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


Tree = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="An SGLang checkout, its python/ folder, the sglang package, or site-packages; a "
        "wheel, zip or source distribution; with --rev, a git repository, bare or not.",
        show_default=False,
    ),
]
TreeOrOut = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="An SGLang checkout, its python/ folder, the sglang package, or site-packages; with "
        "--check, also what `status` takes; with --wheel, the folder or the new .whl file to write "
        "to.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="SEAM", help="Take only this seam; may be repeated."),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="SEAM", help="Leave this seam out; may be repeated."),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--rev",
        metavar="REV",
        help="Read this commit, tag or branch of the repository, without a checkout.",
        show_default=False,
    ),
]
Output = Annotated[Format, typer.Option("--format", help="How to report.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if anything is withheld or has gaps.")
]

app = typer.Typer(
    name="sgl-npu-patch",
    help="Patch SGLang so that --enable-deterministic-inference works on Ascend NPUs.",
    epilog=(
        "Exit codes: 0 as wanted, 1 it is not, 2 usage, 3 conflict, 4 refused, "
        "70 a bug of ours, 130 and 143 interrupted."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"sgl-npu-patch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def apply(
    path: TreeOrOut,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if something would change.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the unified diff too.")] = False,
    only: Only = None,
    skip: Skip = None,
    strict: Strict = False,
    allow_dirty: Annotated[
        bool,
        typer.Option(
            "--allow-dirty", help="Write although git shows uncommitted changes in these files."
        ),
    ] = False,
    wheel: Annotated[
        str | None,
        typer.Option(
            "--wheel",
            metavar="FILE",
            help="Leave this wheel as it is and write a patched one to PATH, with the version "
            f"suffix +{PROJECT.wheel_suffix}.",
            show_default=False,
        ),
    ] = None,
    rev: Revision = None,
    output: Output = Format.text,
) -> None:
    """Patch a tree in place, or a wheel into a new one: all of the series, or nothing."""
    from sgl_npu_patch.engine import apply as api

    if wheel is not None:
        if rev is not None:
            raise UsageError("--rev and --wheel exclude each other: a wheel has no revisions")
        selected = _selected(only, skip)
        _apply_to_wheel(wheel, path, selected, output, check=check, diff=diff, strict=strict)
        return
    if not check:
        api.check_writable(_path(path, "PATH"), rev)
    with _planned(path, rev, _selected(only, skip)) as (tree, planned):
        plan = planned
        if plan.changes.changes and not check:
            plan = api.apply(tree, plan, allow_dirty=allow_dirty)
        else:
            api.prove(plan)
        verb = "would change" if check else "changed"
        with _reader_may_leave():
            _report(tree, plan, output, verb, with_diff=diff)
    _leave(plan, strict=strict, pending=check)


def _apply_to_wheel(
    wheel: str,
    out: str,
    selected: tuple[str, ...],
    output: Format,
    *,
    check: bool,
    diff: bool,
    strict: bool,
) -> None:
    from sgl_npu_patch.engine import apply as api
    from sgl_npu_patch.engine.trees.wheel import open_wheel

    folder = _path(out, "PATH")
    tree = open_wheel(_path(wheel, "FILE"), PROJECT)
    plan = api.plan(tree, _seams(), selected)
    target = api.wheel_target(tree, plan, folder)
    if target is not None and not check:
        plan = api.apply_to_wheel(tree, plan, target)
    else:
        api.prove(plan)
    for warning in plan.warnings:
        _warn(warning)
    verb = "would change" if check else "changed"
    with _reader_may_leave():
        _report(tree, plan, output, verb, with_diff=diff, wheel=target)
        if output is Format.text and not plan.conflicts:
            said = "would write" if check else "wrote"
            print(f"\n{said} {target}" if target else "\nno wheel is written: it is as wanted")
    _leave(plan, strict=strict, pending=check)


@app.command()
def status(
    path: Tree,
    only: Only = None,
    skip: Skip = None,
    strict: Strict = False,
    rev: Revision = None,
    output: Output = Format.text,
) -> None:
    """Show what each seam finds in a tree; write nothing."""
    selected = _selected(only, skip)
    with _planned(path, rev, selected) as (tree, plan), _reader_may_leave():
        _report(tree, plan, output, "would change", with_diff=False)
    _leave(plan, strict=strict, pending=False)


@app.command()
def diff(
    path: Tree,
    only: Only = None,
    skip: Skip = None,
    rev: Revision = None,
) -> None:
    """Print the change as a unified diff for `git apply` or `patch -p1`; write nothing."""
    from sgl_npu_patch.engine.plan import prove

    selected = _selected(only, skip)
    with _planned(path, rev, selected) as (tree, plan), _reader_may_leave():
        prove(plan)
        if plan.conflicts:
            _report(tree, plan, Format.text, "would change", with_diff=False, stream=sys.stderr)
        _print_diff(tree, plan)
    _leave(plan, strict=False, pending=False)


@app.command()
def verify(
    path: Tree,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="ORIGINAL",
            help="The unpatched tree, a folder or archive; adds the comparisons with it.",
            show_default=False,
        ),
    ] = None,
    base_rev: Annotated[
        str | None,
        typer.Option(
            "--base-rev",
            metavar="REV",
            help="Take the unpatched tree from this revision of ORIGINAL, or of PATH without "
            "--base.",
            show_default=False,
        ),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Execute nothing of the tree; needs no torch.")
    ] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Run the tree's layers too, one row alone and in batches, on a simulated NPU "
            "whose own kernels depend on the batch.",
        ),
    ] = False,
    torch_npu: Annotated[
        str | None,
        typer.Option(
            "--torch-npu",
            metavar="VERSION|WHEEL|DIR",
            help="Check the tree's calls against the operators of this torch_npu.",
            show_default=False,
        ),
    ] = None,
    receipt: Annotated[
        str | None,
        typer.Option(
            "--receipt",
            metavar="FILE",
            help="Show what `kit` has measured on a device, and fail where that differs.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="CHECK|SEAM",
            help="Run only this check, or those of this seam; may be repeated.",
        ),
    ] = None,
    rev: Revision = None,
    output: Annotated[CheckFormat, typer.Option("--format", help="How to report.")] = (
        CheckFormat.text
    ),
) -> None:
    """Prove a patched tree: by its text, and by executing it on a simulated NPU."""
    from sgl_npu_patch.verify.run import verify as run_checks

    measured = None
    if receipt is not None:
        from sgl_npu_patch.kit.receipt import read

        measured = read(_path(receipt, "FILE"))
    if static and layers:
        raise UsageError("--layers executes the tree, which --static forbids: choose one")
    with ExitStack() as trees:
        tree = trees.enter_context(_opened(_path(path, "PATH"), rev))
        original = None
        if base is not None or base_rev is not None:
            place = Path(path) if base is None else _path(base, "ORIGINAL")
            original = trees.enter_context(_opened(place, base_rev))
        from sgl_npu_patch.engine.apply import copy_warnings

        for warning in copy_warnings(tree):
            _warn(warning)
        verified = run_checks(
            tree,
            base=original,
            static_only=static,
            layers=layers,
            torch_npu=torch_npu,
            receipt=measured,
            only=only or (),
            tell=_tell,
        )
        with _reader_may_leave():
            _report_checks(tree, verified, output)
    if verified.failed:
        raise typer.Exit(NOT_AS_WANTED)


def _tell(text: str) -> None:
    """Say what begins, to who watches."""
    if sys.stderr.isatty():
        with suppress(OSError):
            print(f"sgl-npu-patch: {text} ...", file=sys.stderr, flush=True)


def _report_checks(tree: SourceTree, verified: Verified, output: CheckFormat) -> None:
    if output is CheckFormat.json:
        from sgl_npu_patch.reports.checks import check_documents
        from sgl_npu_patch.reports.document import document, render_json

        content = document(tree, verified.plan)
        print(render_json(content | {"checks": check_documents(verified.results)}))
    elif output is CheckFormat.junit:
        from sgl_npu_patch.engine.trees.directory import full_name
        from sgl_npu_patch.reports.junit import render_junit

        print(render_junit(verified.results, f"sgl-npu-patch verify {full_name(tree)}"))
    elif output is CheckFormat.sarif:
        from sgl_npu_patch.engine.trees.open import prefix_of
        from sgl_npu_patch.reports.sarif import render_sarif

        print(render_sarif(verified.results, prefix_of(tree)))
    else:
        from sgl_npu_patch.engine.trees.directory import full_name
        from sgl_npu_patch.engine.trees.version import package_version
        from sgl_npu_patch.reports.checks import count, print_checks

        version = package_version(tree) or "of unknown version"
        told = f"SGLang {version} in {full_name(tree)}: {count(verified.results)}"
        print_checks(verified.results, told, sys.stdout)


@app.command(cls=_MatrixCommand)
def matrix(
    context: typer.Context,
    repository: Annotated[
        str | None,
        typer.Argument(metavar="[REPO]", help="The git repository that --revs is about."),
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
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Judge every tree anew, and remember nothing.")
    ] = False,
    report: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="FORMAT=FILE",
            help="Write this report too; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        MatrixFormat, typer.Option("--format", help="How to report on stdout.")
    ] = MatrixFormat.text,
) -> None:
    """Show the statuses of many revisions, releases and folders; write nothing to them."""
    from sgl_npu_patch.matrix import command

    with _reader_may_leave():
        code = command.matrix(
            command.Asked(
                repository=repository,
                kinds=context.meta.get(_ORDER, []),
                revs=revs or [],
                releases=releases or [],
                trees=trees or [],
                first_parent=first_parent,
                touching=touching,
            ),
            checks="verify" if behaviour else "static" if static else "",
            baseline=None if baseline is None else _path(baseline, "FILE"),
            write_baseline=write_baseline,
            jobs=jobs,
            cache=not no_cache,
            reports=report or [],
            output=output.value,
        )
    raise typer.Exit(code)


@app.command()
def bisect(
    repository: Annotated[
        str, typer.Argument(metavar="REPO", help="A git repository.", show_default=False)
    ],
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
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Judge every commit anew, and remember nothing.")
    ] = False,
    output: Output = Format.text,
) -> None:
    """Find the commits at which the statuses of seams change between two revisions."""
    from sgl_npu_patch.matrix import command

    known = tuple(_seams())
    if seam is not None and seam not in known:
        raise UsageError(f"no such seam: {seam}; seams are {', '.join(known)}")
    text, remarks = command.bisect(
        _path(repository, "REPO"), good, bad, seam, cache=not no_cache, output=output.value
    )
    for remark in remarks:
        _warn(remark)
    with _reader_may_leave():
        sys.stdout.write(text)


@app.command()
def doctor(
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="A tree, as `status` takes it, to judge too."),
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
    output: Output = Format.text,
) -> None:
    """Tell whether this machine can run the result: torch, CANN, operators, environment."""
    from sgl_npu_patch.kit.doctor import examine
    from sgl_npu_patch.reports import doctor as report

    if execute and path is None:
        raise UsageError("--execute imports the code of a tree: give its PATH")
    with ExitStack() as trees:
        tree = None
        if path is not None:
            tree = trees.enter_context(_opened(_path(path, "PATH"), None))
            from sgl_npu_patch.engine.apply import copy_warnings

            for warning in copy_warnings(tree):
                _warn(warning)
        _tell("looking at this machine")
        found = examine(tree, execute=execute, python=python)
        with _reader_may_leave():
            if output is Format.json:
                from sgl_npu_patch.reports.document import render_json

                print(render_json(report.doctor_document(found, tree)))
            else:
                report.print_examination(found, sys.stdout)
    raise typer.Exit({True: OK, False: NOT_AS_WANTED, None: REFUSED}[found.able])


@app.command()
def kit(
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write it.", show_default=False
        ),
    ],
) -> None:
    """Write a Python file that measures on a real machine what `verify` simulates."""
    from sgl_npu_patch.kit.render import write_kit

    path = _path(output, "FILE")
    write_kit(path)
    with _reader_may_leave():
        print(f"wrote {path}; take it to a machine with an NPU and run: python {path.name}")


@app.command()
def audit(
    path: Tree,
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
    rev: Revision = None,
    output: Annotated[AuditFormat, typer.Option("--format", help="How to report.")] = (
        AuditFormat.text
    ),
) -> None:
    """List the operators on the NPU path that may depend on the batch and that nothing replaces."""
    from sgl_npu_patch.audit import command

    known = None if baseline is None else _path(baseline, "FILE")
    with _opened(_path(path, "PATH"), rev) as tree, _reader_may_leave():
        from sgl_npu_patch.engine.apply import copy_warnings

        for warning in copy_warnings(tree):
            _warn(warning)
        news = command.run(
            tree,
            sys.stdout,
            model_file=model_file,
            show_all=show_all,
            known=known,
            write_baseline=write_baseline,
            output=output.value,
        )
    if news:
        raise typer.Exit(NOT_AS_WANTED)


@app.command("list")
def list_seams(output: Output = Format.text) -> None:
    """List the seams of the series in order."""
    rows = [(name, _first_line(name)) for name in _seams()]
    if output is Format.json:
        from sgl_npu_patch.reports.document import render_json

        lines = [render_json([{"seam": name, "summary": summary} for name, summary in rows])]
    else:
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {summary}" for name, summary in rows]
    with _reader_may_leave():
        print("\n".join(lines))


@app.command()
def explain(
    seam: Annotated[str, typer.Argument(metavar="SEAM", show_default=False, help="A seam's name.")],
) -> None:
    """Explain one seam in full: why, where, upstream, and when it ends."""
    series = _seams()
    if seam not in series:
        raise UsageError(f"no such seam: {seam}; seams are {', '.join(series)}")
    print(f"{seam}\n{'=' * len(seam)}\n\n{_documentation(seam)}")
    declared = series[seam]
    needs = [*declared.needs, *(f"{need} (where it applies)" for need in declared.needs_if_defined)]
    if needs:
        print(f"\nNeeds: {', '.join(needs)}.")


@app.command()
def fetch(
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
) -> None:
    """Lay out a published release as a source tree, with pip."""
    from sgl_npu_patch.fetch import fetch as fetch_release

    result = fetch_release(release, _path(directory, "DIR"))
    for copy in result.copies:
        _warn(f"{copy} is another copy of the package in {result.wheel}; it is left out")
    print(result)


def main() -> NoReturn:
    """Run the command line and exit with one of the codes of the contract."""
    # Syntax trees are large and live until the end: collecting cycles would only cost time.
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)
    _prepare_streams()
    every = app.registered_commands
    # typer prepares every command there is, which takes longer than reading a file of the tree.
    app.registered_commands = [c for c in every if [_name_of(c)] == sys.argv[1:2]] or every
    try:
        code = app(standalone_mode=False)
    except Exception as error:  # noqa: BLE001  # every ending has an exit code of its own
        code = _exit_code(error)
    except SystemExit:
        # How typer ends when the reader of its help has gone.
        code = OK
    finally:
        app.registered_commands = every
    code = code if isinstance(code, int) else OK
    try:
        with _reader_may_leave():
            pass
    except Refused as error:
        code = _exit_code(error)
    gc.freeze()
    sys.exit(code)


def _name_of(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _prepare_streams() -> None:
    """Make every path printable, and printing harmless where the caller closed a stream."""
    codecs.register_error(__name__, _printable)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8", closefd=False))
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=__name__)


def _printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Give the bytes of a path back as they came, and escape what else has no place."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Write all that was printed; a reader that has gone, such as `head`, is no error of ours.

    Raises:
        Refused: the output cannot be written, for instance to a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Nothing more may fail on what is buffered still, least of all at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise Refused(f"the report cannot be written: {error.strerror}") from error


def _exit_code(error: Exception) -> int:
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, Refused):
        return _say(str(error), REFUSED)
    if isinstance(error, UsageError):
        return _say(str(error), USAGE)
    if isinstance(error, Interrupted):
        return _say(str(error), 128 + error.signum)
    if hasattr(error, "exit_code") and hasattr(error, "show"):
        error.show()
        return USAGE
    if isinstance(error, OSError):
        return _say(f"{error.filename or 'input or output'}: {error.strerror}", REFUSED)
    import traceback

    traceback.print_exc()
    return _say(
        "this is a bug of sgl-npu-patch; no file is half written; "
        "please report it with what is above",
        BUG,
    )


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def _say(message: str, code: int) -> int:
    with suppress(OSError):
        print(f"sgl-npu-patch: {message}", file=sys.stderr, flush=True)
    return code


def _seams() -> Mapping[str, Seam]:
    from sgl_npu_patch.codemods import SERIES

    return SERIES


def _documentation(seam: str) -> str:
    import inspect

    from sgl_npu_patch import codemods

    return inspect.getdoc(getattr(codemods, seam)) or ""


def _first_line(seam: str) -> str:
    return _documentation(seam).splitlines()[0]


def _path(given: str, name: str) -> Path:
    """Make a path of an argument; an empty one is an unset variable rather than this folder."""
    if not given:
        raise UsageError(f"{name} is empty; give a folder, or . for the current one")
    return Path(given)


def _selected(only: list[str] | None, skip: list[str] | None) -> tuple[str, ...]:
    """Choose the seams to judge, in the order of the series."""
    from sgl_npu_patch.engine.plan import choose

    return choose(_seams(), only or (), skip or ())


def _opened(path: Path, rev: str | None) -> AbstractContextManager[SourceTree]:
    from sgl_npu_patch.engine.trees.open import open_tree

    if rev == "":
        raise UsageError("REV is empty; give a commit, tag or branch")
    return open_tree(path, PROJECT, rev)


@contextmanager
def _planned(
    path: str, rev: str | None, selected: tuple[str, ...]
) -> Iterator[tuple[SourceTree, Plan]]:
    from sgl_npu_patch.engine.apply import plan as make_plan

    with _opened(_path(path, "PATH"), rev) as tree:
        plan = make_plan(tree, _seams(), selected)
        for warning in plan.warnings:
            _warn(warning)
        yield tree, plan


def _warn(message: str) -> None:
    with suppress(OSError):
        print(f"sgl-npu-patch: warning: {message}", file=sys.stderr, flush=True)


def _report(
    tree: SourceTree,
    plan: Plan,
    output: Format,
    verb: str,
    *,
    with_diff: bool,
    stream: object = None,
    wheel: Path | None = None,
) -> None:
    out = sys.stdout if stream is None else sys.stderr
    if output is Format.json:
        from sgl_npu_patch.engine.trees.open import prefix_of
        from sgl_npu_patch.reports.diff import render_diff
        from sgl_npu_patch.reports.document import document, render_json

        content = document(tree, plan)
        if wheel is not None:
            content["wheel"] = str(wheel)
        if with_diff:
            content["diff"] = render_diff(plan.changes, prefix_of(tree)).decode("utf-8", "replace")
        print(render_json(content), file=out)
        return
    from sgl_npu_patch.engine.trees.directory import full_name
    from sgl_npu_patch.engine.trees.version import package_version
    from sgl_npu_patch.reports.text import print_plan

    version = package_version(tree) or "of unknown version"
    count = len(plan.changes.changes)
    if plan.conflicts:
        said = "conflicts, nothing is written"
    elif count:
        said = f"{verb} {len(plan.changes.changed)} files, added {len(plan.changes.added)}"
    else:
        said = "nothing to change"
    print_plan(plan, f"SGLang {version} in {full_name(tree)}: {said}", out)
    if with_diff:
        print(flush=True)
        _print_diff(tree, plan)


def _print_diff(tree: SourceTree, plan: Plan) -> None:
    from sgl_npu_patch.engine.trees.open import prefix_of
    from sgl_npu_patch.reports.diff import render_diff

    sys.stdout.flush()
    sys.stdout.buffer.write(render_diff(plan.changes, prefix_of(tree)))
    sys.stdout.buffer.flush()


def _leave(plan: Plan, *, strict: bool, pending: bool) -> None:
    if plan.conflicts:
        raise typer.Exit(CONFLICT)
    if (pending and plan.changes.changes) or (strict and plan.incomplete):
        raise typer.Exit(NOT_AS_WANTED)
