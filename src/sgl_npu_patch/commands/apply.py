"""Patch a tree in place, or a wheel into a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from sgl_npu_patch.commands import options, plans
from sgl_npu_patch.commands.output import warn, write
from sgl_npu_patch.commands.trees import all_seams, planned
from sgl_npu_patch.engine.errors import UsageError

TreeOrOut = Annotated[
    str,
    typer.Argument(
        metavar="[PATH]",
        help="An SGLang checkout, its python/ folder, the sglang package, or site-packages; with "
        "--check, also what `status` takes; with --wheel, the folder or the new .whl file to write "
        "to; by default the current folder.",
        show_default=False,
    ),
]


def run(
    path: TreeOrOut = ".",
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if something would change.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the unified diff too.")] = False,
    only: options.Only = None,
    skip: options.Skip = None,
    strict: options.Strict = False,
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
            help="Leave this wheel as it is and write a patched one to PATH, with a suffix to the "
            "version.",
            show_default=False,
        ),
    ] = None,
    rev: options.Revision = None,
    output: Annotated[str, options.format_option("plan")] = "text",
) -> int:
    """Patch a tree in place, or a wheel into a new one: all of the series, or nothing."""
    from sgl_npu_patch.engine import apply as api

    if wheel is not None:
        if rev is not None:
            raise UsageError("--rev and --wheel exclude each other: a wheel has no revisions")
        return _apply_to_wheel(
            wheel, path, only, skip, output, check=check, diff=diff, strict=strict
        )
    if not check:
        api.check_writable(options.read_path(path, "PATH"), rev)
    with planned(path, rev, only, skip) as (tree, found):
        plan = found
        if plan.changes.changes and not check:
            plan = api.apply(tree, plan, allow_dirty=allow_dirty)
        else:
            api.prove(plan)
        write(*plans.report(tree, plan, output, with_diff=diff))
    return plans.exit_code(plan, strict=strict, pending=check)


def _apply_to_wheel(
    wheel: str,
    out: str,
    only: Sequence[str] | None,
    skip: Sequence[str] | None,
    output: str,
    *,
    check: bool,
    diff: bool,
    strict: bool,
) -> int:
    from sgl_npu_patch.codemods.upstream.project import PROJECT
    from sgl_npu_patch.engine import apply as api
    from sgl_npu_patch.engine.trees.wheel import open_wheel

    selected = api.choose(all_seams(), only or (), skip or ())
    folder = options.read_path(out, "PATH")
    tree = open_wheel(options.read_path(wheel, "FILE"), PROJECT)
    plan = api.plan(tree, all_seams(), selected)
    target = api.wheel_target(tree, plan, folder)
    if target is not None and not check:
        plan = api.apply_to_wheel(tree, plan, target)
    else:
        api.prove(plan)
    for warning in plan.warnings:
        warn(warning)
    write(*plans.report(tree, plan, output, with_diff=diff, wheel=(target,)))
    return plans.exit_code(plan, strict=strict, pending=check)
