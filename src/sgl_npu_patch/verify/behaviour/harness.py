"""Tell an error of the harness from one of the tree that it executes.

The harness executes a few modules of a tree, between stubs. A tree that needs more than it was
given, or that is called by other names than the harness knows, shows nothing about the patch; but
what the tree's own code raises by itself is a failure of the tree.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from sgl_npu_patch.simulator import schemas
from sgl_npu_patch.simulator.modules import NotInTree, source_file
from sgl_npu_patch.simulator.sglang import Execution
from sgl_npu_patch.simulator.stubs import NotGiven, Stub

_CHECKS = f"{os.sep}behaviour{os.sep}"
_SIMULATOR = f"{os.sep}simulator{os.sep}"
_MACHINERY = ("sglang.py", "modules.py", "stubs.py")
"""The simulator's modules that raise for themselves, not in the place of a device."""
_TAKEN_AWAY = ("npu_top_k_top_p", "register_npu_graph_handler")
"""What a check leaves out of torch_npu on purpose."""
_TREES_OWN = (NameError, SyntaxError, MemoryError, KeyboardInterrupt, SystemExit)
_SIGNATURE = re.compile(
    r"(unexpected keyword|missing \d+ required|takes .*argument|multiple values)"
)
_NAMES = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Limit:
    """Why the harness could not run a tree's code, and modules that it may run it with."""

    reason: str
    modules: frozenset[str] = frozenset()


def limit_of(error: BaseException, package: Path) -> Limit | None:
    """Return what the harness lacks where that is why an error was raised, else None."""
    if isinstance(error, NotInTree | NotGiven):
        return Limit(str(error))
    if isinstance(error, _TREES_OWN):
        return None
    frames = [_Frame(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [each for each in frames if each.owner(package)]
    if not frames:
        return None
    deepest = frames[-1]
    owner = deepest.owner(package)
    where = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    loading = [each for each in frames if each.name == "<module>" and each.owner(package) == "tree"]
    if any(each.module(package) in Execution.also_real for each in loading):
        return Limit(f"a module that the tree's code needs cannot be loaded here: {where}")
    if owner == "device":
        return Limit(where) if isinstance(error, NotImplementedError) else None
    stubs = _stubs(error, deepest, frames, package)
    if stubs:
        named = ", ".join(sorted(map(repr, stubs)))
        return Limit(
            f"it needs more of the tree than is executed here ({named}): {where}",
            frozenset(filter(None, (_module(each, package) for each in stubs))),
        )
    if _is_of_torch(error):
        return Limit(f"the torch that is installed here lacks what the tree needs: {where}")
    if owner == "harness" and _is_unknown(error):
        return Limit(f"the tree's code is not called as it was when this was written: {where}")
    return None


class _Frame:
    """One frame of a traceback."""

    def __init__(self, frame: FrameType, line: int) -> None:
        self.frame = frame
        self.line = line
        self.file = frame.f_code.co_filename
        self.name = frame.f_code.co_name

    def owner(self, package: Path) -> str:
        """Return whose code it is: the ``tree``'s, the ``harness``'s, the ``device``'s or none."""
        if self.file.startswith(f"{package}{os.sep}") or f"{os.sep}sglang{os.sep}srt" in self.file:
            return "tree"
        if _SIMULATOR in self.file:
            return "harness" if Path(self.file).name in _MACHINERY else "device"
        return "harness" if _CHECKS in self.file else ""

    def module(self, package: Path) -> str:
        """Return the dotted name of the tree's module that it is in."""
        path = Path(self.file).with_suffix("")
        parts = path.relative_to(package.parent).parts if path.is_relative_to(package) else ()
        return ".".join(parts[:-1] if parts[-1:] == ("__init__",) else parts)

    def stubs(self) -> Iterator[Stub]:
        """Yield the stubs that the line names on which it stopped."""
        text = linecache.getline(self.file, self.line)
        for names in _NAMES.findall(text):
            first, *rest = names.split(".")
            value: Any = self.frame.f_locals.get(first, self.frame.f_globals.get(first))
            for name in rest:
                if isinstance(value, Stub) or value is None:
                    break
                value = getattr(value, "__dict__", {}).get(name)
            if isinstance(value, Stub):
                yield value


def _stubs(
    error: BaseException, deepest: _Frame, frames: list[_Frame], package: Path
) -> list[Stub]:
    """Find the stubs that an error is about."""
    if isinstance(error, ImportError) or _SIGNATURE.search(str(error)):
        return []
    found = [*deepest.stubs()]
    if not found and re.search(r"\bstub\b|\bStub\b", str(error)):
        found = [
            value
            for each in frames
            if each.owner(package) == "tree"
            for value in each.frame.f_locals.values()
            if isinstance(value, Stub)
        ] or [Stub("something")]
    return found


def _module(stub: Stub, package: Path) -> str | None:
    """Return the tree's module that a stub stands in for a part of."""
    name = re.split(r"[(\[]", repr(stub).removeprefix("<stub ").removesuffix(">"))[0]
    while name.startswith("sglang."):
        name = name.rpartition(".")[0]
        file = source_file(package, name)
        if file is not None:
            return name
    return None


def _is_of_torch(error: BaseException) -> bool:
    if isinstance(error, ImportError):
        return (error.name or "").startswith("torch.") or error.name == "torch"
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType):
        return False
    name, missing = error.obj.__name__, error.name or ""
    if name == "torch" or name.startswith("torch."):
        return True
    known = missing in _operators()
    return name.partition(".")[0] == "torch_npu" and known and missing not in _TAKEN_AWAY


def _operators() -> set[str]:
    return {name.partition(".")[0] for name in schemas.of(schemas.DEFAULT)}


def _is_unknown(error: BaseException) -> bool:
    """Report whether the harness asked for what the tree does not have under that name."""
    if isinstance(error, AttributeError):
        owner = error.obj if isinstance(error.obj, ModuleType | type) else type(error.obj)
        module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        return module.partition(".")[0] == "sglang"
    return isinstance(error, TypeError) and bool(_SIGNATURE.search(str(error)))
