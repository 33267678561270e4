"""Check which dispatch key the accelerator gives."""

from __future__ import annotations

import ast
from pathlib import Path

from sgl_npu_patch.codemods.upstream.symbols import DISPATCH
from sgl_npu_patch.simulator.modules import cut_function, file_of, parsed
from sgl_npu_patch.simulator.sglang import Device, Execution, utilities
from sgl_npu_patch.simulator.stubs import Stub
from sgl_npu_patch.verify.behaviour import Failed, Subject, check
from sgl_npu_patch.verify.findings import NotApplicable

KEYS: dict[Device, str | None] = {"cuda": "CUDA", "hip": "CUDA", "xpu": "XPU", "cpu": None}
"""What other devices give since there is the function; None where it is an error."""


@check("device_dispatch")
def an_npu_has_its_own_key(subject: Subject) -> None:
    """On an NPU the dispatch key is "NPU"."""
    _require_function(subject)
    _expect(subject.package, "npu", "NPU")


@check("device_dispatch")
def other_devices_keep_their_key(subject: Subject) -> None:
    """CUDA and XPU keep their dispatch keys; no accelerator is an error."""
    _require_function(subject)
    for on, key in KEYS.items():
        _expect(subject.package, on, dispatch_key(subject.base, on) if subject.base else key)


def dispatch_key(package: Path, on: Device) -> str | None:
    """Execute the function alone, with the predicates that its file defines or imports.

    Returns:
        the key, or None if it raises RuntimeError.
    """
    known = utilities(on)
    bound = {name: known.get(name, Stub(name)) for name in _bound(file_of(package, DISPATCH))}
    try:
        # It may import what it asks for when it is called.
        with Execution(package, on):
            key: str = cut_function(package, DISPATCH, bound)()
    except RuntimeError:
        return None
    return key


def _expect(package: Path, on: Device, wanted: str | None) -> None:
    found = dispatch_key(package, on)
    if found != wanted:
        raise Failed(
            f"{DISPATCH}() gives {found or 'an error'} on {on}",
            expected=wanted or "RuntimeError",
            found=found or "RuntimeError",
            code=f"{DISPATCH}()",
        )


def _require_function(subject: Subject) -> None:
    if subject.left_out.get("device_dispatch") == "not-needed":
        raise NotApplicable(f'the tree registers under a literal "CUDA" and has no {DISPATCH}')


def _bound(file: Path) -> set[str]:
    """Name what a file defines, imports or assigns anywhere outside its functions."""
    names = set()
    waiting: list[ast.AST] = [*parsed(file).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return names
