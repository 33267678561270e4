"""Files stay short enough to be read at one go."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
LIMIT = 600
OPERATORS = PurePosixPath("npu_ops/npu_ops.py")
LONGER = 760
"""The limit of a vendored module with every operator: it stands alone in SGLang's tree."""
CLOSER = 400
"""The limit in the folders that a maintainer opens."""
FOLDERS = ("codemods", *(f"src/sgl_npu_patch/{name}" for name in ("commands", "engine", "reports")))


def limit(path: PurePosixPath) -> int:
    if path == OPERATORS:
        return LONGER
    return CLOSER if any(path.is_relative_to(folder) for folder in FOLDERS) else LIMIT


def test_no_module_is_too_long() -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    done = subprocess.run(listed, check=True, capture_output=True, text=True, cwd=ROOT)
    paths = [PurePosixPath(name) for name in done.stdout.split("\0") if name]
    assert len(paths) > 100
    lengths = {p: len((ROOT / p).read_bytes().splitlines()) for p in paths if (ROOT / p).exists()}
    assert {p: count for p, count in lengths.items() if count > limit(p)} == {}
