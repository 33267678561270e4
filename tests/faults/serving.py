"""Put one fault after the other into a server, each in a fork of one process, and judge it.

Never run by hand: `server` has it started, in the environment of `verify --server`. Importing a
release takes longer than a scenario, so it is imported once, and a fault replaces the code of the
functions that it changes.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FunctionType
from typing import Any

from sgl_npu_patch.verify import protocol
from sgl_npu_patch.verify.server import models
from sgl_npu_patch.verify.server.__main__ import in_child, start, verdict
from sgl_npu_patch.verify.server.scenarios import SCENARIOS


def main() -> None:
    """Answer of each fault what its scenario says."""
    request, answer = protocol.begin()
    ends = time.monotonic() + request["seconds"]
    faults: Mapping[str, dict[str, Any]] = request["faults"]
    answer({"declared": [{"id": n, "seam": "", "meaning": n, "gap": ""} for n in faults]})
    model = models.make(request["family"], Path(request["scratch"]) / "model")
    for name in ("managers.scheduler", "models.registry"):
        import_module(f"sglang.srt.{name}")
    for name, fault in faults.items():

        def judge(fault: Mapping[str, Any] = fault) -> int:
            for module, text in fault["files"].items():
                replace(module, text)
            scenario = SCENARIOS[fault["check"]]
            answer(verdict(scenario, start(model, scenario.options))[0])
            return 0

        answer({"begins": name})
        in_child(judge, ends)
    os._exit(0)


def replace(name: str, text: str) -> None:
    """Let a module be what a text makes of it, wherever its functions are held already."""
    module = sys.modules.get(name)
    if module is None:
        spec = find_spec(name)
        assert spec is not None
        module = sys.modules[name] = module_from_spec(spec)
        exec(compile(text, str(spec.origin), "exec"), vars(module))
        setattr(sys.modules[module.__package__ or ""], name.rpartition(".")[2], module)
        return
    fresh = dict(vars(module))
    exec(compile(text, str(module.__file__), "exec"), fresh)
    _take_over(vars(module), fresh, name)


def _take_over(held: Mapping[str, Any], fresh: Mapping[str, Any], module: str) -> None:
    for name, value in fresh.items():
        before = held.get(name)
        if inspect.isclass(value) and inspect.isclass(before) and value.__module__ == module:
            _take_over(vars(before), vars(value), module)
            continue
        old, new = _function(before), _function(value)
        both = isinstance(old, FunctionType) and isinstance(new, FunctionType)
        if both and new.__module__ == module:
            old.__code__, old.__defaults__ = new.__code__, new.__defaults__


def _function(value: Any) -> Any:
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return inspect.unwrap(inner) if callable(inner) else inner


if __name__ == "__main__":
    main()
