"""Give tests SGLang releases as the program under test leaves them."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from tests.upstream.program import program
from tests.upstream.releases import release_tree

_SCRATCH = tempfile.TemporaryDirectory(prefix="sgl-npu-patch-trees-")


def patched_tree(version: str) -> Path:
    """Return a release's `srt` after `apply`, made once a process and not to be written to."""
    tree, failure = _patched(version)
    if failure:
        raise RuntimeError(failure)
    return tree


@cache
def _patched(version: str) -> tuple[Path, str]:
    pristine = release_tree(version)
    tree = Path(_SCRATCH.name, version)
    package = tree / "sglang"
    package.mkdir(parents=True)
    for module in (pristine / "sglang").glob("*.py"):
        shutil.copyfile(module, package / module.name)
    shutil.copytree(pristine / "sglang" / "srt", package / "srt", ignore=_ignored)
    applied = program("apply", tree, "--format", "json")
    said = f"exit code {applied.code}\n{applied.stdout.decode()}{applied.stderr}"
    return tree, said if applied.code else ""


def _ignored(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if "." in name and not name.endswith(".py")]
