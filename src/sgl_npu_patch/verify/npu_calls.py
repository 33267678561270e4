"""Find the uses of operators in a module: ``torch.ops.npu.X``, ``torch_npu.X`` and, asked for,
the functions of other packages."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Site

_OPS = "torch.ops."
_TORCH_NPU = "torch_npu."
_NEW_TENSORS = (
    "arange", "cat", "cumsum", "empty", "empty_like", "full", "full_like", "ones", "ones_like",
    "stack", "tensor", "zeros", "zeros_like",
)  # fmt: skip
"""The functions of torch whose result is taken for a tensor."""
_ROOTS = ("torch", "torch_npu", "sgl_kernel_npu")
"""Where imported names are followed to."""
_CATCHING = {
    "Exception", "BaseException", "AttributeError", "ImportError", "NotImplementedError",
    "RuntimeError",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """Describe one use of an operator.

    Attributes:
        namespace: of ``torch.ops``, or ``torch_npu``; of another package's function the module
            that it is taken from.
        node: where it stands in the module.
        call: the call, or None where the operator is passed on as a value.
        held: the value is assigned or imported.
        guard: what lets the module go on without the operator; empty if nothing does.
        kinds: what the call's arguments may be; see `contracts.accepts`.
    """

    namespace: str
    operator: str
    overload: str
    site: Site
    node: ast.expr | ast.ImportFrom
    guard: str
    call: ast.Call | None
    held: bool
    kinds: Mapping[ast.expr, frozenset[str]]

    @property
    def code(self) -> str:
        """Spell it out."""
        return ast.unparse(self.node)


_UNKNOWN = ast.Constant(...)
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop)
"""What nothing is assigned in, and most nodes are."""
_SILENT = (ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.alias)
"""What holds no use of an operator."""
Names = dict[str, list[ast.expr]]
Values = Callable[[str], list[ast.expr]]


@dataclass
class _Scope:
    """Hold what is assigned to names, innermost function first, and what surrounds a node."""

    assigned: list[Names]
    packages: Collection[str]
    symbol: list[str] = field(default_factory=list)
    parents: list[ast.AST] = field(default_factory=list)

    def values(self, name: str) -> list[ast.expr]:
        for names in reversed(self.assigned):
            if name in names:
                return names[name]
        return []


def find_uses(
    module: ast.Module, path: PurePosixPath, packages: Collection[str] = ()
) -> Iterator[Use]:
    """Find every use, calls through names and attributes that hold an operator among them.

    An operator that is assigned or imported, and called in this module, is one use a call.

    Args:
        packages: whose functions count as operators too.
    """
    found = list(_walk(module, path, _Scope([_assignments(module)], packages)))
    called = {use.operator for use in found if use.call}
    guards = {use.operator: use.guard for use in found if use.held and use.guard}
    for use in found:
        if use.call is None:
            if not use.held or use.operator not in called:
                yield use
        elif use.guard or f".{use.operator}" in ast.unparse(use.call.func):
            yield use
        else:
            yield replace(use, guard=guards.get(use.operator, ""))


def _walk(node: ast.AST, path: PurePosixPath, scope: _Scope) -> Iterator[Use]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.symbol.append(node.name)
        scope.assigned.append(_assignments(node))
    if isinstance(node, ast.expr):
        yield from _here(node, path, scope)
    elif isinstance(node, ast.ImportFrom) and node.module == "torch_npu":
        for alias in node.names:
            yield _use(f"torch_npu:{alias.name}", node, path, scope, held=True)
    scope.parents.append(node)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SILENT):
            yield from _walk(child, path, scope)
    scope.parents.pop()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.symbol.pop()
        scope.assigned.pop()


def _here(node: ast.expr, path: PurePosixPath, scope: _Scope) -> Iterator[Use]:
    parent = scope.parents[-1] if scope.parents else None
    if isinstance(node, ast.Call):
        for name in sorted(_operators(node.func, scope, followed=True)):
            yield _use(name, node, path, scope, held=False)
        # Taken by getattr, the operator is the value of the call.
        for name in sorted(_operators(node, scope, followed=False)):
            taken = replace(_use(name, node, path, scope, held=True), call=None)
            yield replace(taken, guard="getattr") if len(node.args) == 3 else taken
    elif isinstance(node, (ast.Attribute, ast.Name)) and not (
        _is_part_of_more(node, parent) or isinstance(node.ctx, ast.Store)
    ):
        # A name that holds an operator is judged where it is called, not where it is read.
        held = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.IfExp))
        for name in sorted(_operators(node, scope, followed=False)):
            yield _use(name, node, path, scope, held=held)


def _use(
    name: str, node: ast.expr | ast.ImportFrom, path: PurePosixPath, scope: _Scope, *, held: bool
) -> Use:
    namespace, _, operator = name.partition(":")
    operator, _, overload = operator.partition(".")
    call = node if isinstance(node, ast.Call) else None
    values = [*call.args, *(each.value for each in call.keywords)] if call else []
    return Use(
        namespace,
        operator,
        overload,
        Site(path, node.lineno, ".".join(scope.symbol)),
        node,
        _guard(operator, node, scope),
        call,
        held,
        {value: kinds_of(value, scope.values) for value in values},
    )


def _is_part_of_more(node: ast.expr, parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.Attribute) or (
        isinstance(parent, ast.Call) and parent.func is node
    )


def _operators(node: ast.expr, scope: _Scope, *, followed: bool, depth: int = 4) -> set[str]:
    """Give the operators that an expression may be, as ``namespace:operator.overload``."""
    if depth == 0:
        return set()
    dotted = _dotted(node, scope)
    if dotted.startswith(_OPS) and dotted.count(".") >= 3:
        return {dotted.removeprefix(_OPS).replace(".", ":", 1)}
    if dotted.startswith("torch_npu.atb."):
        return {f"atb:{dotted.removeprefix('torch_npu.atb.')}"}
    if dotted.startswith(_TORCH_NPU):
        return {f"torch_npu:{dotted.removeprefix(_TORCH_NPU)}"}
    place, _, function = dotted.rpartition(".")
    if place.partition(".")[0] in scope.packages and not f"{dotted}.".startswith(_OPS):
        return {f"{place}:{function}"}
    if isinstance(node, ast.IfExp):
        return _operators(node.body, scope, followed=followed, depth=depth - 1) | _operators(
            node.orelse, scope, followed=followed, depth=depth - 1
        )
    name = _key(node)
    if not followed or not name:
        return set()
    found: set[str] = set()
    for value in scope.values(name):
        found |= _operators(value, scope, followed=True, depth=depth - 1)
    if not found and isinstance(node, ast.Attribute):
        inner = _operators(node.value, scope, followed=True, depth=depth - 1)
        found = {f"{each}.{node.attr}" for each in inner if "." not in each}
    return found


def _dotted(node: ast.expr, scope: _Scope, depth: int = 4) -> str:
    """Spell an attribute out from its root, where a name may stand for a namespace."""
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, scope, depth)
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        if len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            base = _dotted(node.args[0], scope, depth)
            return f"{base}.{node.args[1].value!s}" if base else ""
        return ""
    if not isinstance(node, ast.Name):
        return ""
    if node.id in ("torch", "torch_npu", *scope.packages):
        return node.id
    for value in scope.values(node.id) if depth else []:
        dotted = _dotted(value, scope, depth - 1)
        if (
            dotted in ("torch", "torch_npu", "torch.ops")
            or (dotted.startswith(_OPS) and dotted.count(".") == 2)
            or dotted.partition(".")[0] in scope.packages
        ):
            return dotted
    return ""


def _key(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def _assignments(node: ast.AST) -> Names:
    """Collect what names, and attributes of names in classes, are assigned to within a node."""
    found: Names = {}
    whole = isinstance(node, ast.ClassDef)
    waiting = deque(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.popleft()
        for name, value in _bound_by(each):
            if not whole or "." in name:
                found.setdefault(name, []).append(value)
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
        if (whole or not isinstance(each, inner)) and not isinstance(each, _LEAVES):
            waiting.extend(ast.iter_child_nodes(each))
    return found


def _bound_by(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Give what one node assigns; an ellipsis stands for a value that is not followed."""
    if isinstance(node, ast.ImportFrom) and node.module and _root(node.module) in _ROOTS:
        for alias in node.names:
            yield alias.asname or alias.name, _spelled(f"{node.module}.{alias.name}")
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname and _root(alias.name) in _ROOTS:
                yield alias.asname, _spelled(alias.name)
    elif isinstance(node, ast.arg):
        yield node.arg, _UNKNOWN
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Tuple):
                yield from ((_key(each), _UNKNOWN) for each in target.elts if _key(each))
            elif _key(target):
                yield _key(target), node.value
    elif isinstance(node, (ast.AugAssign, ast.For, ast.comprehension)):
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        yield from ((_key(each), _UNKNOWN) for each in targets if _key(each))


def _root(dotted: str) -> str:
    return dotted.partition(".")[0]


def _spelled(dotted: str) -> ast.expr:
    return ast.parse(dotted, mode="eval").body


def kinds_of(node: ast.expr, values: Values, depth: int = 4) -> frozenset[str]:
    """Say what an expression may be; nothing where that cannot be told."""
    if isinstance(node, ast.Constant):
        known = node.value is not ... and not isinstance(node.value, (bytes, complex))
        name = "None" if node.value is None else type(node.value).__name__
        return frozenset({name} if known else ())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return kinds_of(node.operand, values, depth)
    if isinstance(node, ast.JoinedStr):
        return frozenset({"str"})
    if isinstance(node, (ast.List, ast.Tuple)):
        return _kind_of_list(node.elts, values, depth)
    if isinstance(node, ast.ListComp):
        return frozenset({"[]?"})
    if isinstance(node, ast.IfExp):
        both = [kinds_of(each, values, depth) for each in (node.body, node.orelse)]
        return both[0] | both[1] if all(both) else frozenset()
    if isinstance(node, ast.Call):
        return _kind_of_call(node)
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
        dtypes = ("float", "bfloat", "int", "uint", "bool", "half", "long")
        return frozenset({"dtype"} if node.attr.startswith(dtypes) else ())
    if isinstance(node, ast.Name) and depth:
        each = [kinds_of(value, values, depth - 1) for value in values(node.id)]
        return frozenset().union(*each) if each and all(each) else frozenset()
    return frozenset()


def _kind_of_list(items: list[ast.expr], values: Values, depth: int) -> frozenset[str]:
    if not items:
        return frozenset({"[]"})
    inner = [kinds_of(each, values, depth) for each in items]
    known = {kind for kinds in inner for kind in kinds if len(kinds) == 1}
    wrong = known - {"int", "bool", "tensor"}
    if wrong:
        return frozenset(f"[{kind}]" for kind in wrong)
    return frozenset({"[int]" if known and known <= {"int"} and all(inner) else "[]?"})


def _kind_of_call(node: ast.Call) -> frozenset[str]:
    function = ast.unparse(node.func)
    root, _, name = function.rpartition(".")
    if name == "tolist" or function in ("list", "tuple", "sorted"):
        return frozenset({"[]?"})
    if function in ("int", "len"):
        return frozenset({"int"})
    if function in ("float", "str", "bool"):
        return frozenset({function})
    if root == "torch" and name in _NEW_TENSORS:
        return frozenset({"tensor"})
    array = node.func.value if isinstance(node.func, ast.Attribute) else None
    if root in ("np", "numpy") and name in ("arange", "array", "cumsum", "zeros", "ones", "full"):
        return _array(node)
    if name in ("cumsum", "astype", "copy") and isinstance(array, ast.Call):
        inner = _kind_of_call(array)
        if inner <= {"ints", "floats"}:
            return _array(node) if name == "astype" else inner
    return frozenset()


def _array(node: ast.Call) -> frozenset[str]:
    """Tell an array of whole numbers, as far as the call says so, from one of others."""
    texts = [ast.unparse(each) for each in [*node.args, *(k.value for k in node.keywords)]]
    named = {text.rpartition(".")[2].strip("'\"") for text in texts}
    if named & {"float16", "float32", "half", "single"}:
        # Torch takes some of their items for whole numbers, and some not.
        return frozenset()
    whole = any(name.startswith(("int", "uint")) for name in named)
    of_floats = ast.unparse(node.func).rpartition(".")[2] in ("zeros", "ones") and not whole
    floats = of_floats or named & {"float", "float64", "double"}
    return frozenset({"floats" if floats else "ints"})


def _guard(operator: str, node: ast.AST, scope: _Scope) -> str:
    """Name what surrounds a use and lets the module go on where the operator is missing."""
    inner: ast.AST = node
    for parent in reversed(scope.parents):
        if isinstance(parent, (ast.If, ast.IfExp)):
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            if inner in body and _asks_for(parent.test, operator):
                return "hasattr"
        elif isinstance(parent, ast.Try):
            if inner in parent.body and any(_catches(each) for each in parent.handlers):
                return "try"
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: parent.values.index(inner)] if inner in parent.values else []
            if any(_asks_for(each, operator) for each in before):
                return "hasattr"
        inner = parent
    return ""


def _asks_for(test: ast.expr, operator: str) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks_for(each, operator) for each in test.values)
    return (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "hasattr"
        and len(test.args) == 2
        and isinstance(test.args[1], ast.Constant)
        and test.args[1].value == operator
    )


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in _CATCHING for each in types)
