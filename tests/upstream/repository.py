"""Give tests a git repository whose tags are published releases, one commit and one tag each."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.upstream.releases import release_tree

FOLDER = "python"
"""Where the package stands, as in upstream's repository."""

_FIRST_DAY = 1_700_000_000
_SCRATCH = tempfile.TemporaryDirectory(prefix="sgl-npu-patch-repository-")


@cache
def release_repository(*versions: str) -> Path:
    """Return a bare repository with a tag `v<version>` on each commit of its branch `main`.

    It is made once a process, from the Python files of the releases, and not to be written to.
    """
    bare = Path(_SCRATCH.name, f"{len(list(Path(_SCRATCH.name).iterdir()))}.git")
    command = ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(bare)]
    subprocess.run(command, check=True)
    # Lets a partial clone ask for single objects.
    for name in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        subprocess.run(["git", "-C", str(bare), "config", name, "true"], check=True)
    importing = ["git", "-C", str(bare), "fast-import", "--quiet", "--done"]
    with subprocess.Popen(importing, stdin=subprocess.PIPE) as process:
        assert process.stdin
        for part in _commands(versions):
            process.stdin.write(part)
    assert process.returncode == 0
    return bare


def _commands(versions: tuple[str, ...]) -> Iterator[bytes]:
    marks: dict[bytes, int] = {}
    for number, version in enumerate(versions):
        root = release_tree(version)
        files = []
        for path in sorted((root / "sglang").rglob("*.py")):
            data = path.read_bytes()
            digest = hashlib.sha256(data).digest()
            if digest not in marks:
                marks[digest] = len(marks) + 1
                yield b"blob\nmark :%d\ndata %d\n%b\n" % (marks[digest], len(data), data)
            name = path.relative_to(root).as_posix()
            files.append(f"M 100644 :{marks[digest]} {FOLDER}/{name}\n")
        when = _FIRST_DAY + number * 86_400
        said = f"Release {version}\n"
        yield (
            f"commit refs/heads/main\ncommitter tests <tests@localhost> {when} +0000\n"
            f"data {len(said)}\n{said}deleteall\n{''.join(files)}\n"
            f"reset refs/tags/v{version}\nfrom refs/heads/main\n\n"
        ).encode()
    yield b"done\n"
