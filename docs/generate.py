"""Write what is generated in the documentation: ``make docs``.

docs/seams.md comes from the docstrings of the codemods, docs/run.svg from a run of the program. In
every other page, the commands of a console block behind a line ``<!-- run -->`` are run again, in a
folder that holds SGLang 0.5.12.post1 as ``sglang``, and what they print replaces what the page has.
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
PICTURE = ROOT / "docs" / "run.svg"
RELEASE = "0.5.12.post1"

_BLOCK = re.compile(r"(<!-- run -->\n```console\n)(.*?)(```\n)", re.DOTALL)
_PICTURED = "sgl-npu-patch apply sglang"
_WEB_FONT = re.compile(r" *@font-face \{.*?\}\n", re.DOTALL)

_ENVIRONMENT = {
    **{f"GIT_{who}_NAME": "you" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "you@localhost" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2026-01-05T12:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
"""Makes the same commits whoever runs it, and whenever."""

INTRODUCTION = """\
# Seams

A seam is one place, or group of places, in SGLang that the patch changes. The seams are judged and
edited in this order; `sgl-npu-patch explain SEAM` prints the same text. This page is generated from
the docstrings in `codemods/` by `make docs`; edit those.
"""


def render_seams() -> str:
    """Return docs/seams.md: one heading a seam, then its docstring and what it needs."""
    parts = [INTRODUCTION]
    for name, seam in codemods.SERIES.items():
        parts.append(f"\n## {name}\n\n{inspect.getdoc(getattr(codemods, name))}\n")
        needs = [*seam.needs, *(f"{need} (where it applies)" for need in seam.needs_if_defined)]
        if needs:
            parts.append(f"\n**Needs**: {', '.join(needs)}.\n")
    return "".join(parts)


def render_picture(release: Path) -> str:
    """Return docs/run.svg: a terminal with one run of `apply`, in colour.

    Args:
        release: a tree of SGLang 0.5.12.post1, of which a copy is patched.
    """
    from rich.console import Console
    from rich.text import Text

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(release, Path(folder) / "sglang")
        output = _run(_PICTURED, folder, FORCE_COLOR="1")
    shown = Text.from_ansi(f"$ {_PICTURED}\n{output}")
    shown.rstrip()
    width = max(len(line) for line in shown.plain.splitlines())
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True)
        console.print(shown, soft_wrap=True)
    # Whoever looks at the picture loads nothing from elsewhere.
    picture = _WEB_FONT.sub("", console.export_svg(title="sgl-npu-patch", unique_id="run"))
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


def pages() -> list[Path]:
    """Return the pages that may hold blocks to run."""
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {SEAMS})]


def rerun(page: str, release: Path) -> str:
    """Return a page's text with the output of its blocks as the program prints it now.

    Args:
        release: a tree of SGLang 0.5.12.post1; the commands see a copy of it.
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
            output = "\n".join(part.rstrip() for part in _run(line[2:], folder).splitlines())
            printed.append(f"{line}\n{output}\n" if output else f"{line}\n")
    return "".join(printed)


def _run(command: str, folder: str, **variables: str) -> str:
    return subprocess.run(  # noqa: S602  # the commands are those of our own pages
        command,
        shell=True,
        cwd=folder,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **_ENVIRONMENT, **variables},
    ).stdout


def main() -> None:
    """Fetch the release and write all pages."""
    from sgl_npu_patch.fetch import fetch

    SEAMS.write_text(render_seams(), encoding="utf-8", newline="\n")
    with tempfile.TemporaryDirectory() as folder:
        release = Path(folder) / "release"
        fetch(RELEASE, release)
        PICTURE.write_text(render_picture(release), encoding="utf-8", newline="\n")
        for page in pages():
            text = page.read_text(encoding="utf-8")
            page.write_text(rerun(text, release), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
