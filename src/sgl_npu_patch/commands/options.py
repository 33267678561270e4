"""Declare the options that several commands share, and read their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.reports.formats import Kind, formats_of

Tree = Annotated[
    str,
    typer.Argument(
        metavar="[PATH]",
        help="An SGLang checkout, its python/ folder, the sglang package, or site-packages; a "
        "wheel, zip or source distribution; with --rev, a git repository, bare or not; by default "
        "the current folder.",
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
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if anything is withheld or has gaps.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")]


def format_option(kind: Kind) -> Any:
    """Return the option that chooses among the formats of a kind of document."""
    formats = formats_of(kind)

    def check(value: str) -> str:
        if value not in formats:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(formats)}")
        return value

    return typer.Option(
        "--format",
        metavar="|".join(formats),
        help="How to report.",
        callback=check,
        autocompletion=lambda: formats,
    )


def read_path(given: str, name: str) -> Path:
    """Return an argument as a path; an empty one is an unset variable rather than this folder."""
    if not given:
        raise UsageError(f"{name} is empty; give a folder, or . for the current one")
    return Path(given)
