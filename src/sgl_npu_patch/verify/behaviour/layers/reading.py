"""Read which operators of torch_npu a path of the attention calls that is not executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from sgl_npu_patch.simulator import torch_npu
from sgl_npu_patch.simulator.modules import file_of, parsed
from sgl_npu_patch.verify.behaviour.layers.world import ATTENTION, World
from sgl_npu_patch.verify.findings import NotApplicable


def only_read(world: World, why: str, flags: dict[str, bool], part: str = "") -> NoReturn:
    """Raise NotApplicable with the operators of torch_npu that a path calls.

    Args:
        flags: the attributes that the path is taken by, and their values.
        part: of the operators' names.
    """
    file = file_of(world.package, ATTENTION)
    path = file.relative_to(world.package).as_posix()
    found: dict[str, int] = {}
    for function in ast.walk(parsed(file)):
        if isinstance(function, ast.FunctionDef) and function.name in _FORWARDS:
            for name, line in _npu_calls(function, flags, bool(flags)):
                if part in name:
                    found.setdefault(name, line)
    if not found:
        raise NotApplicable(f"the tree has no path for {why}")
    replaced = [name for name in found if _is_rebound(world, name)]
    native = [f"{name} ({path}:{line})" for name, line in found.items() if name not in replaced]
    raise NotApplicable(
        f"not promised: {why} is read and not executed; "
        f"replaced: {', '.join(replaced) or 'none'}; native: {', '.join(native) or 'none'}"
    )


_FORWARDS = ("forward_extend", "forward_decode")


def _npu_calls(
    node: ast.AST, flags: Mapping[str, bool], elsewhere: bool
) -> Iterator[tuple[str, int]]:
    """Give torch_npu's operators that are called where the flags have those values.

    `elsewhere` is true until a test of the first flag has been passed, and calls do not count.
    """
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        flag = next((f for f in flags if test.removeprefix("not ").startswith(f)), None)
        if flag is not None:
            holds = flags[flag] is not test.startswith("not ")
            taken = node.body if holds else node.orelse
            # More than the flag may be asked for, and then the other branch is taken too.
            more = test.removeprefix("not ") != flag and holds
            passed = elsewhere and flag != next(iter(flags))
            for child in [*taken, *(node.orelse if more else ())]:
                yield from _npu_calls(child, flags, passed)
            return
    if isinstance(node, ast.Call) and not elsewhere:
        name = ast.unparse(node.func)
        if name.startswith(("torch_npu.", "torch.ops.npu.")):
            yield name, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _npu_calls(child, flags, elsewhere)


def _is_rebound(world: World, name: str) -> bool:
    """Tell whether that name is another operator now than torch_npu's own."""
    scope, _, operator = name.rpartition(".")
    namespace: Any = torch.ops.npu if scope.startswith("torch.ops") else world.torch_npu
    if scope not in ("torch.ops.npu", "torch_npu"):
        return False
    found = vars(namespace).get(operator)
    own = f"{torch_npu.NAMESPACE}::{operator}"
    return found is not None and getattr(found, "_qualified_op_name", "") != own
