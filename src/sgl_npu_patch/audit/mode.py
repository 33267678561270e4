"""Read off a tree what its batch-invariant mode replaces on an NPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from sgl_npu_patch.audit.parsed import WHOLE, Parsed
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.codemods.upstream.symbols import ENABLE
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.verify.replacements import constants_of, text_of

_COLLECTIVES = "HCCL_DETERMINISTIC"
_NAMESPACES = ("torch.ops.npu", "torch_npu")


@dataclass(frozen=True, slots=True)
class Mode:
    """Hold what is replaced: ``aten::mm``, ``torch_npu.npu_add_rms_norm``, a variable that is set.

    Attributes:
        site: the function that enters the mode, None if the tree has none.
        modules: where the replacements are that it imports on an NPU.
    """

    replaced: frozenset[str]
    site: Site | None
    modules: frozenset[PurePosixPath] = frozenset()

    def replaces(self, names: tuple[str, ...]) -> bool:
        """Tell whether all of these are replaced."""
        return self.replaced.issuperset(names)


def read_mode(parsed: Parsed) -> Mode:
    """Follow the function that enters the mode into the modules that it calls on an NPU."""
    found = {_COLLECTIVES} if _sets_collectives(parsed) else set()
    site = None
    files: set[PurePosixPath] = set()
    names = ENABLE.names
    for path in {p for name in names for p in parsed.tree.containing(f"def {name}".encode())}:
        module, where = parsed.module(path), parsed.places(path)
        for function in module.body:
            if isinstance(function, ast.FunctionDef) and function.name in names:
                site = Site(path, function.lineno, function.name)
                on_npu = [
                    node
                    for node in ast.walk(function)
                    if node in where and where[node].where == "npu"
                ]
                modules, functions = _imported(on_npu, path, parsed)
                files |= {*modules.values(), *(file for file, _ in functions.values())}
                followed = _followed(on_npu, modules, functions, parsed)
                found |= {*_replaced(on_npu, module), *followed}
    return Mode(frozenset(found), site, frozenset(files))


def _sets_collectives(parsed: Parsed) -> bool:
    """Tell whether the launch guards are in the tree, or something else sets their variable."""
    return bool(parsed.tree.containing(_COLLECTIVES.encode()))


_Modules = dict[str, PurePosixPath]
_Functions = dict[str, tuple[PurePosixPath, str]]


def _imported(
    nodes: list[ast.AST], path: PurePosixPath, parsed: Parsed
) -> tuple[_Modules, _Functions]:
    """List what is imported from the folder of the replacements: modules, and functions of them."""
    modules: _Modules = {}
    functions: _Functions = {}
    folder = parsed.tree.package / PROJECT.vendor_folder
    for node in nodes:
        for name, file, what in (
            parsed.imports(node, path) if isinstance(node, ast.ImportFrom) else ()
        ):
            if file.parent == folder and what == WHOLE:
                modules[name] = file
            elif file.parent == folder:
                functions[name] = file, what
    return modules, functions


def _followed(
    nodes: list[ast.AST], modules: _Modules, functions: _Functions, parsed: Parsed
) -> Iterator[str]:
    """Yield what is replaced by functions of the modules beside upstream's own replacements."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = ast.unparse(node.func).rpartition(".")
        target = (modules[owner], name) if owner in modules else functions.get(name)
        if target is not None:
            module = parsed.module(target[0])
            for function in _reached(module, target[1]):
                yield from _replaced(list(ast.walk(function)), module)


def _reached(module: ast.Module, name: str) -> list[ast.FunctionDef]:
    """List a module's function and those of it that it names, and so on."""
    known = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
    waiting, found = [name], {}
    while waiting:
        each = waiting.pop()
        if each in known and each not in found:
            found[each] = known[each]
            waiting += [n.id for n in ast.walk(known[each]) if isinstance(n, ast.Name)]
    return list(found.values())


def _replaced(nodes: list[ast.AST], module: ast.Module) -> Iterator[str]:
    constants = constants_of(module)
    loops = {ast.unparse(node.target): node.iter for node in nodes if isinstance(node, ast.For)}
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from _rebound(node)
        elif isinstance(node, ast.For):
            yield from _registered_in_turn(node, module)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "impl" and node.args:
                registered = text_of(node.args[0], constants)
                # In a loop the name is not known here.
                yield from () if registered.endswith("::") else (registered,)
            elif name in ("_rebind", "rebind", "setattr") and len(node.args) >= 2:
                given = loops.get(ast.unparse(node.args[0]), node.args[0])
                places = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
                for place in map(ast.unparse, places):
                    if place in _NAMESPACES:
                        yield f"{place}.{text_of(node.args[1], constants)}"


def _rebound(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) in _NAMESPACES:
            yield ast.unparse(target)


def _registered_in_turn(loop: ast.For, module: ast.Module) -> Iterator[str]:
    """Yield the keys of the table that a loop registers by aten's names, one after another."""
    if not any(
        isinstance(part, ast.JoinedStr) and ast.unparse(part).startswith("f'aten::")
        for part in ast.walk(loop)
    ):
        return
    for named in ast.walk(loop.iter):
        for table in _reached(module, named.id) if isinstance(named, ast.Name) else ():
            for part in ast.walk(table):
                keys = part.keys if isinstance(part, ast.Dict) else []
                if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
                    keys = [part.slice]
                texts = [key.value for key in keys if isinstance(key, ast.Constant)]
                yield from (f"aten::{text!s}" for text in texts)
