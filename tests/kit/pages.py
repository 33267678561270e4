"""Run again what the pages show of doctor and the kit, on simulated machines.

A console block behind a line ``<!-- machine JSON -->`` is run on the machine that the JSON says, as
`tests.kit.machine` makes it. ``python -m tests.kit`` writes the pages anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from sgl_npu_patch.kit.render import render_kit
from tests.kit.simulated import ROOT, interpreter

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("doctor", "kit"))

_BLOCK = re.compile(r"(<!-- machine ([^\n]*) -->\n```console\n)(.*?)(```\n)", re.DOTALL)
_NEEDED = dict.fromkeys(("ASCEND_USE_FIA", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT"), "1") | {
    "NO_COLOR": "1"
}
_VERSIONS = (
    (re.compile(r"(python\.version\W+(?:ok )? *)3\.\d+\.\d+\w*"), "3.11.9"),
    (re.compile(r"(\"python\": \")3\.\d+\.\d+\w*"), "3.11.9"),
    (re.compile(r"(torch\.import\W+(?:ok )? *)\d+\.\d+\.\d+(?:\+\w+)?"), "2.13.0"),
)
_BITS = re.compile(
    r"in \d+ of \d+ elements: \w+, alone \w+|\"(?:alone|in_batch)\": \"\w+\"|"
    r"\"(?:elements|deviation)\": [-+.\de]+"
)


def rerun(page: str) -> str:
    """Give a page's text with what its blocks print now."""
    return _BLOCK.sub(lambda block: block[1] + _session(block[3], block[2]) + block[4], page)


def _session(block: str, machine: str) -> str:
    printed = []
    for line in block.splitlines():
        if line.startswith("$ "):
            with tempfile.TemporaryDirectory() as name:
                output = _run(line[2:], Path(name), machine)
            printed.append("\n".join([line, *output]) + "\n")
    return "".join(printed)


def _run(command: str, folder: Path, machine: str) -> list[str]:
    """Run a command where `python` is the machine's, and the program looks at that one."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    python = interpreter(bin_folder, **json.loads(machine))
    program = bin_folder / "sgl-npu-patch"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m sgl_npu_patch "$@" --python "{python}"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    (folder / "kit.py").write_text(render_kit(), encoding="utf-8")
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    done = subprocess.run(  # noqa: S602  # the commands are those of our own pages
        command,
        shell=True,
        check=False,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**kept, **_NEEDED, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
    )
    return [_pinned(line.rstrip()) for line in done.stdout.splitlines()]


def _pinned(line: str) -> str:
    """Put the versions of the page's own machine in place of this one's."""
    for pattern, version in _VERSIONS:
        line = pattern.sub(rf"\g<1>{version}", line)
    return line


def without_bits(page: str) -> str:
    """Leave out what the arithmetic of a CPU decides."""
    return _BITS.sub("...", page)
