"""Ask git about the work tree that holds a directory, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sgl_npu_patch.engine.errors import Refused


def work_tree(path: Path) -> Path | None:
    """Find the root of the git work tree that a directory stands in."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if (folder / ".git").exists():
            return folder
    return None


def uncommitted(root: Path, paths: Sequence[Path]) -> list[str]:
    """List those of the paths that git would show as changed; ignored files do not count.

    Raises:
        Refused: git is missing or fails.
    """
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false",
               "status", "--porcelain", "-z", "--untracked-files=all", "--"]  # fmt: skip
    names = [f":(top,literal){path.resolve().relative_to(root).as_posix()}" for path in paths]
    try:
        done = subprocess.run(
            [*command, *names],
            cwd=root,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "GIT_LITERAL_PATHSPECS": "0"},
        )
    except OSError as error:
        raise Refused(
            f"{root}: a git work tree, but git cannot be run ({error.strerror}), so uncommitted "
            "changes cannot be ruled out; install git or pass --allow-dirty"
        ) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(
            f"{root}: git status failed: {said[0] if said else done.returncode}; "
            "pass --allow-dirty to patch without asking git"
        )
    return [entry[3:] for entry in done.stdout.decode("utf-8", "replace").split("\0") if entry]
