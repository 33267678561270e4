"""Make repositories with long histories of a small package, by one process each."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engine.package import COMMON, SOURCES

BROKEN = SOURCES[COMMON].replace("def get_dispatch_device_backend", "def device_backend")
"""A file without which one seam is a conflict."""
OTHER = "srt/other.py"

Files = Mapping[str, str | None]


def history(folder: Path, commits: Sequence[Files], tags: Mapping[str, int] | None = None) -> Path:
    """Make a bare repository; each commit of `main` changes files of the package, given whole.

    The first commit has the whole package too. None takes a file away, and a name that begins with
    a slash stands outside of the package. `tags` name commits by their places.
    """
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(folder)], check=True)
    lines = []
    for number, files in enumerate(commits):
        said = f"Change {number}"
        when = 1_700_000_000 + number
        lines.append("commit refs/heads/main")
        lines.append(f"mark :{number + 1}")
        lines.append(f"committer tests <tests@localhost> {when} +0000")
        lines.append(f"data {len(said)}\n{said}")
        for name, text in {**(SOURCES if not number else {}), **files}.items():
            path = name[1:] if name.startswith("/") else f"python/sglang/{name}"
            if text is None:
                lines.append(f"D {path}")
                continue
            lines.append(f"M 100644 inline {path}")
            lines.append(f"data {len(text.encode())}\n{text}")
    for name, number in (tags or {}).items():
        lines.append(f"reset refs/tags/{name}\nfrom :{number + 1}\n")
    importing = ["git", "-C", str(folder), "fast-import", "--quiet"]
    subprocess.run(importing, check=True, input="\n".join([*lines, ""]).encode())
    return folder


def graph(folder: Path, commits: Mapping[str, tuple[str, Files]]) -> Path:
    """Make a bare repository whose commits are tagged by their names, the last one is `main`.

    Each is given by the names of its parents, separated by blanks, and by the files in which it
    differs from the first of them; one without parents has the whole package.
    """
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(folder)], check=True)
    lines = []
    for number, (name, (parents, files)) in enumerate(commits.items()):
        first, *others = parents.split() or [""]
        lines += ["reset refs/heads/main", *([f"from refs/tags/{first}"] if first else []), ""]
        lines += ["commit refs/heads/main", f"mark :{number + 1}"]
        lines += [f"committer tests <tests@localhost> {1_700_000_000 + number} +0000"]
        lines += [f"data {len(name)}\n{name}"]
        lines += [f"merge refs/tags/{other}" for other in others]
        for path, text in {**({} if first else SOURCES), **files}.items():
            lines.append(f"M 100644 inline python/sglang/{path}")
            lines.append(f"data {len((text or '').encode())}\n{text}")
        lines += [f"reset refs/tags/{name}", f"from :{number + 1}", ""]
    importing = ["git", "-C", str(folder), "fast-import", "--quiet"]
    subprocess.run(importing, check=True, input="\n".join([*lines, ""]).encode())
    return folder


def commit_of(repository: Path, revision: str) -> str:
    command = ["git", "-C", str(repository), "rev-parse", revision]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
