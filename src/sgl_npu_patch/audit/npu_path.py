"""Tell what of a module runs on an NPU: its path, its functions' names and the tests of devices."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Where = Literal["npu", "common", "elsewhere"]
"""Only on an NPU, on every device, or on an NPU never."""

_NPU = {"npu", "ascend"}
_OTHERS = {
    "aiter", "amd", "amx", "cuda", "cutedsl", "cutlass", "deepgemm", "flashinfer", "gfx", "gpu",
    "hip", "hpu", "intel", "marlin", "metal", "mlx", "mps", "musa", "quark", "rocm", "tpu", "xpu",
}  # fmt: skip
_ON_CPU = ("forward_cpu", "apply_cpu")
"""Other names with that word are about copies on the host, which an NPU's server has too."""
_ASKS_NPU = re.compile(r"_?is_(npu|ascend)\w*", re.IGNORECASE)
_ASKS_OTHER = re.compile(
    r"_?is_(cuda(_alike)?|hip|xpu|musa|hpu|mps|tpu|gfx\w+|sm\d\w*|blackwell\w*|hopper\w*|"
    r"cpu_amx_available)|_?use_aiter\w*|_?is_sm\w*_supported",
    re.IGNORECASE,
)
_ASKS_CPU = re.compile(r"_?is_cpu", re.IGNORECASE)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True)
class Place:
    """Say where a node runs, and the dotted name of the definition around it."""

    where: Where
    symbol: str


def classify(module: ast.Module, where: Where) -> Mapping[ast.AST, Place]:
    """Tell of each statement and call where it runs.

    Args:
        where: what the module's file is for.
    """
    walk = _Walk()
    walk.block(module.body, Place(where, ""))
    return walk.found


def where_of_file(path: PurePosixPath) -> Where:
    """Tell by its path below the package for which devices a file is."""
    words = {word for part in path.with_suffix("").parts for word in part.lower().split("_")}
    return "npu" if words & _NPU else "elsewhere" if words & _OTHERS else "common"


def devices_asked_for(node: ast.AST) -> tuple[bool, int]:
    """Tell whether something asks for the NPU, and for how many other devices it asks."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    others = {name.strip("_").lower() for name in names if _ASKS_OTHER.fullmatch(name)}
    return any(_ASKS_NPU.fullmatch(name) for name in names), len(others)


class _Walk:
    def __init__(self) -> None:
        self.found: dict[ast.AST, Place] = {}

    def block(self, body: Sequence[ast.AST], place: Place) -> None:
        """Walk statements in their order: what leaves the block decides on what follows."""
        for statement in body:
            if not isinstance(statement, ast.If):
                self.visit(statement, place)
                continue
            self.found[statement] = place
            self.visit(statement.test, place)
            then, otherwise = _branches(statement.test, place)
            self.block(statement.body, then)
            self.block(statement.orelse, otherwise)
            if _always_leaves(statement.body):
                place = otherwise
            elif _always_leaves(statement.orelse):
                place = then

    def visit(self, node: ast.AST, place: Place) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            place = Place(
                _join(place.where, _where_of_name(node.name)),
                f"{place.symbol}.{node.name}".lstrip("."),
            )
        if isinstance(node, (ast.stmt, ast.Call, ast.Attribute, ast.Name)):
            self.found[node] = place
        if isinstance(node, (ast.Name, ast.Constant)):
            return
        if isinstance(node, ast.IfExp):
            then, otherwise = _branches(node.test, place)
            self.visit(node.test, place)
            self.visit(node.body, then)
            self.visit(node.orelse, otherwise)
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.visit(value, place)
                then, otherwise = _branches(value, place)
                place = then if isinstance(node.op, ast.And) else otherwise
            return
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                self.block([each for each in value if isinstance(each, ast.AST)], place)
            elif isinstance(value, ast.AST):
                self.visit(value, place)


def _where_of_name(name: str) -> Where:
    words = set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))
    if words & _NPU or name.startswith("NPU"):
        return "npu"
    return "elsewhere" if words & _OTHERS or name in _ON_CPU else "common"


def _join(outer: Where, inner: Where) -> Where:
    if "elsewhere" in (outer, inner):
        return "elsewhere"
    return "npu" if "npu" in (outer, inner) else "common"


def _branches(test: ast.expr, place: Place) -> tuple[Place, Place]:
    """Tell where the two branches of a test run."""
    on, off = _holds(test, on_npu=True), _holds(test, on_npu=False)
    then: Where = "elsewhere" if on is False else "npu" if off is False else "common"
    otherwise: Where = "elsewhere" if on is True else "npu" if off is True else "common"
    if then == otherwise:
        return place, place
    return (
        Place(_join(place.where, then), place.symbol),
        Place(_join(place.where, otherwise), place.symbol),
    )


def _holds(test: ast.expr, *, on_npu: bool) -> bool | None:
    """Say what a test gives on an NPU, or on anything else; None where it asks for more."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand, on_npu=on_npu)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        values = [_holds(value, on_npu=on_npu) for value in test.values]
        decides = isinstance(test.op, ast.Or)
        if decides in values:
            return decides
        return None if None in values else not decides
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, on_npu=on_npu)
    return _asked(test, on_npu=on_npu)


def _asked(test: ast.expr, *, on_npu: bool) -> bool | None:
    called = isinstance(test, ast.Call)
    target = test.func if isinstance(test, ast.Call) else test
    text = ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
    name = text.rpartition(".")[2]
    if text == "torch.npu.is_available":
        return on_npu
    if text == "torch.cuda.is_available" or _ASKS_OTHER.fullmatch(name):
        return False if on_npu else None
    if _ASKS_CPU.fullmatch(name) and (called or isinstance(target, ast.Name)):
        # Of a tensor it says only where that one is.
        return False if on_npu else None
    if called and text == "hasattr" and isinstance(test, ast.Call):
        return on_npu if "'npu'" in [ast.unparse(each) for each in test.args] else None
    if _ASKS_NPU.fullmatch(name):
        exact = name.lower().strip("_") == "is_npu"
        return (True if exact else None) if on_npu else False
    return None


def _compared(test: ast.Compare, *, on_npu: bool) -> bool | None:
    """Judge a comparison of a device or backend with names."""
    named = _strings(test.comparators[0])
    about = ast.unparse(test.left).lower()
    if not named or not (named & _NPU or "device" in about):
        return None
    equal = isinstance(test.ops[0], (ast.Eq, ast.In))
    if not equal and not isinstance(test.ops[0], (ast.NotEq, ast.NotIn)):
        return None
    if named & _NPU:
        # A tensor's or server's device is the NPU there; a backend may still be another one.
        certain = "device" in about and "npu" in named
        on: bool | None = True if certain else None
        off: bool | None = False if named <= _NPU else None
    else:
        devices = named <= _OTHERS | {"cuda", "cpu"}
        # What is compared with "cpu" is often a tensor of the host, on every machine.
        on, off = (False if devices and "cpu" not in named else None), None
    answer = on if on_npu else off
    return answer if answer is None or equal else not answer


def _strings(node: ast.expr) -> set[str]:
    parts: Iterable[ast.expr] = (
        node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    )
    found = [
        each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else None
        for each in parts
    ]
    return {text for text in found if text is not None} if None not in found else set()


def _always_leaves(body: Sequence[ast.AST]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _always_leaves(last.body) and _always_leaves(last.orelse)
    return isinstance(last, _LEAVES)
