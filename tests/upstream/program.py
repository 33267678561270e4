"""Run the program as its users do, and read its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sgl_npu_patch.codemods import SERIES

ROOT = Path(__file__).parents[2]

SEAMS = tuple(SERIES)


@dataclass(frozen=True, slots=True)
class Run:
    """One finished process; `stdout` is bytes because a diff must arrive unchanged."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON document on stdout, which must be the only thing there."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        assert document["schema"] == 1
        return document

    @property
    def statuses(self) -> dict[str, str]:
        return {outcome["seam"]: outcome["status"] for outcome in self.report["outcomes"]}

    @property
    def gaps(self) -> dict[str, list[str]]:
        """The named gaps of each seam that has any."""
        outcomes = self.report["outcomes"]
        return {each["seam"]: list(each["gaps"]) for each in outcomes if each["gaps"]}

    @property
    def changed(self) -> list[PurePosixPath]:
        return [PurePosixPath(path) for path in self.report["changed"]]

    @property
    def added(self) -> list[PurePosixPath]:
        return [PurePosixPath(path) for path in self.report["added"]]


def program(*arguments: str | Path, cwd: Path = ROOT) -> Run:
    """Run `sgl-npu-patch` and return what came of it, whatever the exit code."""
    # A warning must not reach the user either, such as the parser's about upstream's sources.
    command = [sys.executable, "-W", "error", "-m", "sgl_npu_patch", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, cwd=cwd)
    return Run(done.returncode, done.stdout, done.stderr.decode())
