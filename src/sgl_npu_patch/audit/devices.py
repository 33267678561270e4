"""Find dispatch sites and backend lists that know other devices but not the NPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from sgl_npu_patch.audit.catalogue import Operator
from sgl_npu_patch.audit.mode import Mode
from sgl_npu_patch.audit.npu_path import devices_asked_for, where_of_file
from sgl_npu_patch.audit.parsed import Parsed
from sgl_npu_patch.audit.scan import RUNTIME, Call
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.engine.errors import AnchorError, Site

_BACKENDS = {"fa3", "triton"}
_KEYS, _NPU_KEYS = {"CUDA", "XPU", "HIP"}, {"NPU", "PrivateUse1"}
_MARK = "DETERMINISTIC"
_RADIX_OFF = f"{symbols.DISABLE_RADIX_CACHE} = True"


def scan(parsed: Parsed, mode: Mode) -> Iterator[Call]:
    """Yield the lists of backends, the dispatching functions and a mode without the NPU."""
    if mode.site is not None and not any(name.startswith("aten::") for name in mode.replaced):
        yield _call(
            mode.site.symbol, mode.site, "It registers nothing for the NPU.", "batch_invariant"
        )
    for path in _files(parsed, _MARK.encode(), *(name.encode() for name in symbols.HANDLER.names)):
        yield from _lists(parsed, path)
    for path in _files(parsed, b"def dispatch_forward", b"dispatch_device", b"dispatch_key"):
        yield from _dispatching(parsed, path)


def _files(parsed: Parsed, *needles: bytes) -> list[PurePosixPath]:
    found = {path for needle in needles for path in parsed.tree.containing(needle)}
    relative = {path: parsed.relative(path) for path in found}
    return sorted(
        path
        for path in found
        if relative[path].parts[0] in RUNTIME and where_of_file(relative[path]) == "common"
    )


def _call(name: str, site: Site, why: str, covered_by: str | None) -> Call:
    source = "seams.md, backend_lists, radix_cache, device_dispatch, batch_invariant"
    return Call("dispatch", name, site, Operator("native", why, covered_by, source))


def _lists(parsed: Parsed, path: PurePosixPath) -> Iterator[Call]:
    module = parsed.module(path, (_MARK.encode(),))
    for node in module.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target)
            if _MARK in name and _lacks_ascend(node.value):
                radix = "RADIX" in name
                if not (radix and _cache_must_stay_off(parsed)):
                    seam = "radix_cache" if radix else "backend_lists"
                    why = f"{name} has no {symbols.ASCEND}."
                    yield _call(name, Site(path, node.lineno, name), why, seam)
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef) and function.name in symbols.HANDLER.names:
            yield from _literals(parsed, path, function)


def _literals(parsed: Parsed, path: PurePosixPath, function: ast.FunctionDef) -> Iterator[Call]:
    gates = {
        node
        for test in ast.walk(function)
        if isinstance(test, ast.If) and any(_turns_cache_off(each) for each in test.body)
        for node in ast.walk(test.test)
    }
    for node in ast.walk(function):
        if not isinstance(node, ast.expr) or not _lacks_ascend(node):
            continue
        if node in gates and _cache_must_stay_off(parsed):
            continue
        seam = "radix_cache" if node in gates else "deepseek_refused"
        name, site = ast.unparse(node), Site(path, node.lineno, function.name)
        yield _call(name, site, f"What it refuses is refused for {symbols.ASCEND}.", seam)


def _turns_cache_off(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node).endswith(_RADIX_OFF)


def _lacks_ascend(node: ast.expr) -> bool:
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return False
    names = {each.value for each in node.elts if isinstance(each, ast.Constant)}
    return len(names) > 1 and bool(names & _BACKENDS) and symbols.ASCEND not in names


def _cache_must_stay_off(parsed: Parsed) -> bool:
    """Tell whether the list is right as it is: prefill ignores a cached prefix."""
    from sgl_npu_patch.codemods.upstream import attention
    from sgl_npu_patch.engine.overlay import Overlay
    from sgl_npu_patch.engine.view import View

    try:
        return attention.ignores_prefix(View(Overlay(parsed.tree), [])) is not None
    except AnchorError:
        return False


def _dispatching(parsed: Parsed, path: PurePosixPath) -> Iterator[Call]:
    for node in ast.walk(parsed.module(path, (b"dispatch",))):
        if not isinstance(node, ast.FunctionDef) or "dispatch" not in node.name:
            continue
        keys = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
        asks, others = devices_asked_for(node)
        by_key = keys & _KEYS and not keys & _NPU_KEYS
        by_test = node.name == "dispatch_forward" and others > 1 and not asks
        if by_key or by_test:
            why = "It chooses by the device, and knows no NPU."
            seam = "device_dispatch" if by_key else None
            yield _call(node.name, Site(path, node.lineno, node.name), why, seam)
