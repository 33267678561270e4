"""Write down what the mode does on a device whose kernels cannot be simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from sgl_npu_patch.codemods.upstream import modules, symbols
from sgl_npu_patch.simulator.sglang import VENDORED, Device, Execution
from sgl_npu_patch.verify.behaviour.machine import mode_modules, takes_bmm

_MODE = (symbols.ENABLE, symbols.DISABLE, symbols.SCOPED, modules.IS_ENABLED)


class _Library:
    """Stand for `torch.library.Library`; write down what is done with it."""

    log: list[Any]

    def __init__(self, namespace: str, kind: str, *others: object) -> None:
        self.log.append(("new", namespace, kind, others))

    def impl(self, name: str, function: Callable[..., Any], *others: object) -> None:
        self.log.append(("impl", name, _identity(function), others))

    def _destroy(self) -> None:
        self.log.append(("destroy",))


def _identity(function: Any) -> tuple[str, object]:
    """Tell functions of two trees apart by name and code."""
    code: CodeType = function.__code__
    return function.__qualname__, (code.co_code, code.co_consts[1:], code.co_names)


def shown(event: Any) -> str:
    """Show an event without the code of its functions."""
    if isinstance(event, tuple):
        parts = (p[0] if isinstance(p, tuple) and p and isinstance(p[0], str) else p for p in event)
        return " ".join(map(str, parts))
    return "nothing more" if event is None else str(event)


@cache
def trace(package: Path, on: Device) -> list[Any]:
    """Return everything that the mode does off the NPU; torch_npu cannot be imported."""
    log: list[Any] = []
    _Library.log = log
    bmm, library = torch.bmm, torch.library.Library
    with Execution(package, on, real=mode_modules(package)) as execution:
        execution.defining(symbols.ENABLE)
        vars(torch.library)["Library"] = _Library
        try:
            _walk(execution, log)
        except RuntimeError as error:
            log.append(str(error))
        finally:
            vars(torch)["bmm"] = bmm
            vars(torch.library)["Library"] = library
        log.append(("loaded", *sorted(n for n in sys.modules if n.startswith(f"{VENDORED}."))))
    return log


def _walk(execution: Execution, log: list[Any]) -> None:
    """Go through what the module offers, writing down `torch.bmm` and the flag after each step."""
    original = torch.bmm
    enable, disable, scoped, is_enabled = map(execution.value, _MODE)
    state = vars(execution.defining(symbols.ENABLE))

    def note(step: str) -> None:
        bmm = "original" if torch.bmm is original else _identity(torch.bmm)
        log.append((step, bmm, is_enabled()))

    for options in (
        ({}, {"enable_bmm": False}, {"enable_bmm": True}) if takes_bmm(execution) else ({},)
    ):
        enable(**options)
        note("on")
        enable(**options)
        note("on again")
        disable()
        note("off")
    for start, inside in product((False, True), repeat=2):
        torch.bmm = original
        if start:
            enable()
        with scoped(inside):
            note(f"{inside} in {start}")
        note("left")
        state["_batch_invariant_LIB"] = None
        state["_batch_invariant_MODE"] = False
    try:
        with scoped():
            raise KeyError("of the check")
    except KeyError:
        note("left by an exception")
