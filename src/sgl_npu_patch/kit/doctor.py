"""Examine this machine, in a process of its own, and a tree by its text."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.kit import facts
from sgl_npu_patch.kit.facts import Fact
from sgl_npu_patch.kit.render import render_doctor

if TYPE_CHECKING:
    from sgl_npu_patch.engine.plan import Plan
    from sgl_npu_patch.engine.trees.directory import SourceTree

SECONDS = 300
"""How long looking may take: importing torch_npu and waking a device take some."""

_GUARDS = "launch_guards"
_GUARDS_MISSING = "launch_guards_missing"


@dataclass(frozen=True, slots=True)
class Examination:
    """Hold what was found out about a machine, and about a tree if there is one."""

    facts: tuple[Fact, ...]
    versions: dict[str, str]
    chip: str

    def count(self, verdict: str) -> int:
        """Count the facts of a verdict."""
        return sum(fact.verdict == verdict for fact in self.facts)

    @property
    def able(self) -> bool | None:
        """Tell whether the result can run here; None where that cannot be told."""
        if self.count(facts.WRONG):
            return False
        return None if self.count(facts.UNSEEN) else True


def examine(
    tree: SourceTree | None, *, execute: bool = False, python: str = sys.executable
) -> Examination:
    """Find out whether a machine can run the result.

    Args:
        tree: is judged as `status` does.
        execute: enter the mode by the tree's own code instead of a copy of npu_ops.
        python: the interpreter that is to run SGLang.

    Raises:
        Refused: the tree cannot be read, or the other process gives no answer.
    """
    own: list[Fact] = []
    guarded = True
    if tree is not None:
        plan = _plan(tree)
        own = list(_of_tree(plan))
        guarded = any(
            outcome.seam == _GUARDS
            and outcome.status in ("already", "upstream")
            and _GUARDS_MISSING not in outcome.gaps
            for outcome in plan.outcomes
        )
    with ExitStack() as folders:
        mode = None
        if tree is not None and execute:
            from sgl_npu_patch.engine.trees.open import as_folder

            mode = _mode_of(folders.enter_context(as_folder(tree)) / tree.package)
        seen = _ask(python, {"guarded": guarded, "mode": mode})
    found = [Fact(**each) for each in seen["facts"]]
    return Examination((*found, *own), seen["versions"], seen["chip"])


def _mode_of(package: Path) -> dict[str, str]:
    """Name the functions by which a tree's mode is entered and left, and their modules."""
    from sgl_npu_patch.codemods.upstream import symbols
    from sgl_npu_patch.simulator.modules import NotInTree, require

    try:
        enter, leave = (require(package, each) for each in (symbols.ENABLE, symbols.DISABLE))
    except NotInTree as error:
        raise Refused(str(error)) from error
    return {
        "folder": str(package.parent),
        "enter": f"{enter.module}:{enter.name}",
        "leave": f"{leave.module}:{leave.name}",
    }


def _plan(tree: SourceTree) -> Plan:
    from sgl_npu_patch.codemods import SERIES
    from sgl_npu_patch.engine.plan import make_plan

    return make_plan(tree, SERIES)


def _of_tree(plan: Plan) -> Iterator[Fact]:
    for outcome in plan.outcomes:
        name = f"tree.{outcome.seam}"
        if outcome.status == "conflict":
            yield Fact(name, facts.WRONG, outcome.reason, "see sgl-npu-patch status PATH")
        elif outcome.status == "pending":
            yield Fact(name, facts.WRONG, "not patched", "run sgl-npu-patch apply PATH")
        elif outcome.gaps or outcome.status == "withheld":
            told = f"gaps: {', '.join(outcome.gaps)}" if outcome.gaps else outcome.reason
            yield Fact(name, facts.NOTE, f"{outcome.status}; {told}")
        else:
            yield Fact(name, facts.OK, outcome.status)


def _ask(python: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run the facts' own source, from a folder where nothing can be imported by mistake."""
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as folder:
        program = Path(folder) / "machine.py"
        program.write_text(render_doctor(), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, "-B", str(program)],
                check=False,
                input=json.dumps(request),
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise Refused(f"looking at this machine was not done after {SECONDS} s") from error
        except OSError as error:
            raise Refused(f"{python} cannot be run: {error.strerror}") from error
    try:
        seen: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        code = done.returncode
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = done.stderr.strip().splitlines()[-1:]
        told = ": ".join(["the process that looks at this machine " + how, *last])
        raise Refused(told) from error
    return seen
