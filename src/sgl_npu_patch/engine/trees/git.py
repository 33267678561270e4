"""Call git so that neither the caller's environment nor a repository changes what it does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sgl_npu_patch.engine.errors import Refused

_OTHERS = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
"""Variables that a hook of another repository leaves behind."""
COMMAND = ("git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false",
           "-c", f"core.hooksPath={os.devnull}")  # fmt: skip
"""How every call begins."""


def environment() -> dict[str, str]:
    """Give the variables for a call that only reads, in English, and never asks or fetches."""
    kept = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        # An id must stand for the content that it is the hash of.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def work_tree(path: Path) -> Path | None:
    """Find the root of the git work tree that a directory stands in."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if os.path.lexists(folder / ".git"):
            return folder
    return None


def uncommitted(root: Path, paths: Sequence[Path]) -> list[str]:
    """List those of the paths that git would show as changed; ignored files do not count.

    Paths that lead out of the work tree are not git's to judge.

    Raises:
        Refused: git is missing or fails.
    """
    command = [*COMMAND, "status", "--porcelain", "-z", "--no-renames",
               "--untracked-files=all", "--"]  # fmt: skip
    inside = [path for path in map(Path.resolve, paths) if path.is_relative_to(root)]
    names = [f":(top,literal){path.relative_to(root).as_posix()}" for path in inside]
    if not names:
        return []
    try:
        done = subprocess.run(
            [*command, *names],
            cwd=root,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={
                **environment(),
                # With `--git-dir` instead, git would no longer ask who owns the repository.
                "GIT_CEILING_DIRECTORIES": str(root.parent),
                "GIT_LITERAL_PATHSPECS": "0",
            },
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
