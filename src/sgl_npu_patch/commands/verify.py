"""Check a patched tree."""

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
    path: options.Tree = ".",
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
    server: Annotated[
        bool,
        typer.Option(
            "--server",
            help="Run the tree's own server too, with a tiny model on that NPU, and compare each "
            "request's tokens and logprobs with those that it gets alone.",
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="FAMILY",
            help="The family of the server's tiny model: qwen3 (unless given), qwen2, qwen2-128, "
            "llama, llama-128, qwen3-moe or deepseek-v2.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The config.json of a model that the server's is to be like, only smaller.",
            show_default=False,
        ),
    ] = None,
    adversarial: Annotated[
        str | None,
        typer.Option(
            "--adversarial",
            metavar="attention",
            help="Let attention on the server's NPU follow how a prompt is cut into calls too.",
            show_default=False,
        ),
    ] = None,
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
    rev: options.Revision = None,
    output: Annotated[str, options.format_option("checks")] = "text",
) -> int:
    """Check a patched tree: by its text, and by executing it on a simulated NPU."""
    from sgl_npu_patch.reports import codec
    from sgl_npu_patch.simulator.environment import OF_ATTENTION
    from sgl_npu_patch.verify.run import verify
    from sgl_npu_patch.verify.server.models import DEFAULT, FAMILIES, Model, read_config, shrunk
    from sgl_npu_patch.verify.server.run import Server

    measured = None
    if receipt is not None:
        from sgl_npu_patch.kit.receipt import read

        measured = read(options.read_path(receipt, "FILE"))
    for asked, option in ((layers, "--layers"), (server, "--server")):
        if static and asked:
            raise UsageError(f"{option} executes the tree, which --static forbids: choose one")
    for given, option in ((model, "--model"), (config, "--config"), (adversarial, "--adversarial")):
        if given is not None and not server:
            raise UsageError(f"{option} is about the server: pass --server too")
    if adversarial not in (None, OF_ATTENTION):
        raise UsageError(f"nothing to be adversarial about in {adversarial!r}: try {OF_ATTENTION}")
    if model is not None and config is not None:
        raise UsageError("--model and --config both choose the model: give one of them")
    if model not in (None, *FAMILIES):
        raise UsageError(f"no family {model!r}: choose one of {', '.join(FAMILIES)}")
    tiny: Model = model or DEFAULT
    if config is not None:
        tiny = shrunk(read_config(options.read_path(config, "FILE")))
    with ExitStack() as trees:
        tree = trees.enter_context(opened(path, rev))
        original = None
        if base is not None:
            original = trees.enter_context(opened(base, base_rev, name="ORIGINAL"))
        elif base_rev is not None:
            original = trees.enter_context(opened(path, base_rev))
        warn_of_copies(tree)
        verified = verify(
            tree,
            base=original,
            static_only=static,
            layers=layers,
            server=Server(tiny, adversarial or "") if server else None,
            torch_npu=torch_npu,
            receipt=measured,
            only=only or (),
            tell=report_progress,
        )
        document = codec.tree_document(tree, verified.plan, verified.results)
        write(render(output, "checks", document, Target(sys.stdout, tree)))
    return exits.NOT_AS_WANTED if verified.failed else exits.OK
