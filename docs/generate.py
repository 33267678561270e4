"""Write what is generated in the documentation: ``make docs``.

docs/seams.md comes from the docstrings of the codemods. In every other page, a console block
behind a line ``<!-- run -->`` is run again, in a folder that holds SGLang 0.5.12.post1 as
``sglang``, and what the program prints replaces what stands there.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sgl_npu_patch import codemods

ROOT = Path(__file__).resolve().parent.parent
SEAMS = ROOT / "docs" / "seams.md"
RELEASE = "0.5.12.post1"

_BLOCK = re.compile(r"(<!-- run -->\n```console\n)(.*?)(```\n)", re.DOTALL)

_GIT = {
    **{f"GIT_{who}_NAME": "you" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "you@localhost" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2026-01-05T12:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
}
"""Gives the same commits whoever makes them, and whenever."""

INTRODUCTION = """\
# Seams

A seam is one place (or group of places) in SGLang that the patch changes. The seams of a series are
judged and edited in this order; `sgl-npu-patch explain SEAM` prints the same text. This page is
generated from the docstrings in `codemods/` by `make docs`; edit those.
"""

ABOUT = {
    "deterministic": """\
Adapts trees that have no adaptation of their own, SGLang 0.5.3rc2 to 0.5.12.post1. Trees that have
one keep it, and its gaps are named.
""",
    "hardening": """\
Closes those gaps, on trees that have upstream's adaptation, 0.5.13 and later. `--series all` judges
it first, so that `deterministic` names what stays open.
""",
}


def render_seams() -> str:
    """Give docs/seams.md: one heading a seam, then its docstring and what it needs."""
    parts = [INTRODUCTION]
    for series, about in ABOUT.items():
        parts.append(f"\n## Series `{series}`\n\n{about}")
        for name, seam in codemods.SERIES[series].items():
            needs = [
                *seam.needs,
                *(f"{need} (where it applies)" for need in seam.needs_if_defined),
            ]
            parts.append(f"\n### {name}\n\n{inspect.getdoc(getattr(codemods, name))}\n")
            if needs:
                parts.append(f"\n**Needs**: {', '.join(needs)}.\n")
    return "".join(parts)


def pages() -> list[Path]:
    """List the pages that may hold blocks to run."""
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {SEAMS})]


def rerun(page: str, release: Path) -> str:
    """Give a page's text with the output of its blocks as the program prints it now.

    Args:
        release: a tree of SGLang 0.5.12.post1; a copy of it is what the commands see.
    """
    if not _BLOCK.search(page):
        return page
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(release, Path(folder) / "sglang")
        return _BLOCK.sub(lambda block: block[1] + _session(block[2], folder) + block[3], page)


def _session(block: str, folder: str) -> str:
    printed = []
    for line in block.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(  # noqa: S602  # the commands are those of our own pages
                line[2:],
                shell=True,
                cwd=folder,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={
                    **os.environ,
                    **_GIT,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                },
            )
            output = "\n".join(part.rstrip() for part in done.stdout.splitlines())
            printed.append(f"{line}\n{output}\n" if output else f"{line}\n")
    return "".join(printed)


def main() -> None:
    """Fetch the release and write all pages."""
    from sgl_npu_patch.fetch import fetch

    SEAMS.write_text(render_seams(), encoding="utf-8", newline="\n")
    with tempfile.TemporaryDirectory() as folder:
        release = Path(folder) / "release"
        fetch(RELEASE, release)
        for page in pages():
            text = page.read_text(encoding="utf-8")
            page.write_text(rerun(text, release), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
