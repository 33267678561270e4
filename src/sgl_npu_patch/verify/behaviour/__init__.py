"""Declare the checks that execute a tree; each is a function of a `Subject`.

A check returns where the behaviour holds, and may give a text on what it saw. It raises `Failed`,
or an `AssertionError` with a message that says what was found, where it does not, and
`findings.NotApplicable` where it has no meaning on a tree.
The modules of this package are imported only in the process that `isolation` starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

GROUPS = ("handler", "dispatch", "batch_invariant", "npu_ops", "sampler", "penalties", "layers")
"""The modules of this package that declare checks; each can run in a process of its own."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Name the tree to execute, and what its structure says about it.

    Attributes:
        package: the tree's ``sglang`` package.
        base: the unpatched tree's package, if there is one to compare with.
        left_out: the seams whose change has no place in this tree or would be unsafe there, with
            the status ``not-needed`` or ``withheld``; judged by the seam's premise alone, so that
            an edit of a patched line does not change what is expected.
        native: the tree carries upstream's own adaptation.
        torch_npu: the version whose operators are simulated.
    """

    package: Path
    base: Path | None
    left_out: Mapping[str, str]
    native: bool
    torch_npu: str


class Failed(Exception):
    """Say that the tree does not behave as it must."""

    def __init__(
        self, message: str, *, expected: str = "", found: str = "", code: str = ""
    ) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found
        self.code = code


Run = Callable[[Subject], "str | None"]


@dataclass(frozen=True, slots=True)
class Check:
    """Pair a named behaviour with the function that tries it out."""

    id: str
    seam: str
    meaning: str
    gap: str
    run: Run


CHECKS: dict[str, Check] = {}
"""All that the imported groups declare, by id, in their order."""


def check(seam: str, *, gap: str = "") -> Callable[[Run], Run]:
    """Declare a check; its docstring's first line says what holds on a tree that passes.

    Args:
        gap: the gap of adapted releases that a failure is, by the name that `status` gives it.
    """

    def declare(run: Run) -> Run:
        name = f"{seam}.{run.__name__}"
        meaning = (run.__doc__ or "").strip().splitlines()[0]
        CHECKS[name] = Check(name, seam, meaning, gap, run)
        return run

    return declare


def declared(group: str) -> tuple[Check, ...]:
    """Import one group, by its name or as a whole module's, and give its checks in their order."""
    module = import_module(group if "." in group else f"{__name__}.{group}")
    own = (module.__name__, f"{module.__name__}.")
    return tuple(
        each
        for each in CHECKS.values()
        if each.run.__module__ == own[0] or each.run.__module__.startswith(own[1])
    )
