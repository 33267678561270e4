"""Make an interpreter that runs on a simulated machine, and run the kit on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_npu_patch.kit.render import render_kit

ROOT = Path(__file__).parents[2]
MACHINE = Path(__file__).with_name("machine.py")
SMALL = ("--sizes", "2", "3", "--width", "16")


def interpreter(folder: Path, **machine: Any) -> Path:
    """Write an executable that takes what python takes, and has the machine around it."""
    path = folder / "python"
    command = [sys.executable, str(MACHINE), json.dumps(machine)]
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"os.environ['PYTHONPATH'] = {str(ROOT)!r}\n"
        f"os.execv({sys.executable!r}, {command!r} + sys.argv[1:])\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


@dataclass
class Measured:
    """Hold what a run of the kit gave."""

    code: int
    printed: str
    receipt: dict[str, Any]

    def verdicts(self, mode: str) -> dict[str, bool | None]:
        """Say by operator whether all its comparisons are equal; None where some failed."""
        found: dict[str, bool | None] = {}
        for claim in self.receipt["claims"]:
            equal = claim[mode].get("equal")
            before = found.get(claim["operator"], True)
            found[claim["operator"]] = None if None in (equal, before) else bool(equal and before)
        return found


def measure(folder: Path, *options: str, **machine: Any) -> Measured:
    """Run the kit in a folder of its own."""
    kit = folder / "kit.py"
    kit.write_text(render_kit(), encoding="utf-8")
    done = subprocess.run(
        [str(interpreter(folder, **machine)), str(kit), *SMALL, *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.stderr == ""
    receipt = json.loads((folder / "receipt.json").read_bytes())
    return Measured(done.returncode, done.stdout, receipt)
