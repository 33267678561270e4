"""Call git so that neither the caller's environment nor a repository changes what it does."""

from __future__ import annotations

import os
import subprocess
import tempfile
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
_VERSIONS = "v[0-9]*"
"""Tags that name a version."""


def environment() -> dict[str, str]:
    """Return the variables for a call that only reads, in English, and never asks or fetches."""
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


def run(
    path: Path, arguments: Sequence[str], *more: str, given: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, whatever its exit code.

    Args:
        given: what it reads from its standard input.
        variables: further variables of its environment.

    Raises:
        Refused: git is missing.
    """
    command = [*COMMAND, *arguments, *more]
    try:
        # Through files: git writes a pipe line by line where it reads lines.
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answers:
            asked.write(given)
            asked.seek(0)
            done = subprocess.run(
                command,
                cwd=path,
                env={**environment(), **variables},
                stdin=asked,
                stdout=answers,
                stderr=subprocess.PIPE,
                check=False,
            )
            answers.seek(0)
            said = answers.read()
            return subprocess.CompletedProcess(command, done.returncode, said, done.stderr)
    except OSError as error:
        raise Refused(f"{path}: git cannot be run: {error.strerror}; install git") from error


def first_line(said: bytes) -> str:
    """Return the first line of git's messages that is more than a hint."""
    lines = said.decode("utf-8", "replace").splitlines()
    return next((line for line in lines if not line.startswith("hint:")), "")


def work_tree(path: Path) -> Path | None:
    """Find the root of the git work tree that a directory stands in."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if os.path.lexists(folder / ".git"):
            return folder
    return None


def uncommitted(root: Path, paths: Sequence[Path]) -> list[str]:
    """List those of the paths that git would show as changed; ignored files do not count.

    Paths that lead out of the work tree are left out: git knows nothing of them.

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
        raise Refused(
            f"{root}: git status failed: {first_line(done.stderr) or done.returncode}; "
            "pass --allow-dirty to patch without asking git"
        )
    return [entry[3:] for entry in os.fsdecode(done.stdout).split("\0") if entry]


def unmerged(root: Path) -> frozenset[str]:
    """List the paths that a merge has left unmerged; none where git cannot be asked.

    Args:
        root: of a git work tree; the paths are relative to it.
    """
    try:
        done = run(root, ["ls-files", "--unmerged", "-z"], GIT_CEILING_DIRECTORIES=str(root.parent))
    except Refused:
        return frozenset()
    # Each entry is `MODE ID STAGE<TAB>PATH`; a path has up to three stages.
    entries = os.fsdecode(done.stdout).split("\0")
    return frozenset(entry.partition("\t")[2] for entry in entries if entry)


def describe(path: Path, commits: Sequence[str]) -> list[str | None]:
    """Find the version of each commit: the nearest version tag that it can reach.

    Returns for each `0.5.9` on the tag, `0.5.9-12-gabc1234` after it, None where there is no tag.

    Args:
        path: a folder of the repository.
    """
    options = ["--tags", f"--match={_VERSIONS}", "--always"]
    try:
        done = run(path, ["describe", *options, "--end-of-options"], *commits)
    except Refused:
        return [None] * len(commits)
    names = os.fsdecode(done.stdout).splitlines()
    if len(names) != len(commits):
        return [None] * len(commits)
    # Where no tag is reachable, the name is the commit's id, which has no `v`.
    return [name[1:] if name.startswith("v") else None for name in names]
