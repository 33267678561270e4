"""Check that what the edited functions name exists, in the module or where it is imported from."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Refused, Site
from sgl_npu_patch.verify.findings import Finding
from sgl_npu_patch.verify.static.judged import FunctionNode, Judged, Place

_ALWAYS = frozenset({*dir(builtins), "__file__", "__name__", "__doc__", "__path__"})
_DEPTH = 8
"""How many modules a name may be handed on through."""


def names_resolve(judged: Judged, seam: str) -> Iterator[Finding]:
    """Every name used in the definitions that the seam edits resolves."""
    for place, node in judged.functions(seam):
        yield from _unbound(judged, place, node)
        for statement in ast.walk(node):
            if isinstance(statement, ast.ImportFrom):
                yield from _missing(judged, place, statement, {a.name for a in statement.names})
            elif isinstance(statement, ast.Import):
                yield from _missing_modules(judged, place, statement)
        yield from _missing_above(judged, place, node)


def _unbound(judged: Judged, place: Place, node: FunctionNode) -> Iterator[Finding]:
    top = judged.table(place.path)
    used = _globals(_table(top, node)) | _outside(node)
    for name in sorted(used - _ALWAYS):
        if not _binds(judged, place.path, name):
            line = next(
                (n.lineno for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name),
                node.lineno,
            )
            yield Finding(
                Site(place.path, line, place.block.qualname),
                f"{name} as a parameter, local, import or definition of the module",
                "nothing that binds it",
                f"import or define {name}, or correct the name",
            )


def _table(top: symtable.SymbolTable, node: FunctionNode) -> symtable.SymbolTable:
    """Find the scope of a function."""
    found = list(top.get_children())
    for table in found:
        same = table.get_name() == node.name and table.get_lineno() == node.lineno
        if same and table.get_type() == "function":
            return table
        found += table.get_children()
    raise AssertionError(f"no scope of {node.name}")


def _globals(table: symtable.SymbolTable) -> set[str]:
    names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return names.union(*(_globals(child) for child in table.get_children()))


def _outside(node: FunctionNode) -> set[str]:
    """Name what a definition uses before it runs: decorators, defaults and annotations."""
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    outer = [*node.decorator_list, *given.defaults, *given.kw_defaults, node.returns]
    outer += [each.annotation for each in named if each is not None]
    return {
        name.id
        for part in outer
        if part is not None
        for name in ast.walk(part)
        if isinstance(name, ast.Name)
    }


def _binds(judged: Judged, path: PurePosixPath, name: str, depth: int = 0) -> bool:
    """Tell whether a module has a name, also by a function's ``global`` or a star import."""
    top = judged.table(path)
    if name in top.get_identifiers():
        symbol = top.lookup(name)
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            return True
    if any(_declares(table, name) for table in top.get_children()):
        return True
    if depth == _DEPTH or not judged.source(path).named("*", "import"):
        return False
    return any(
        _hands_on(judged, path, found.node, name, depth)
        for found in judged.near(path, "import *")
        if isinstance(found.node, ast.ImportFrom) and found.node.names[0].name == "*"
    )


def _declares(table: symtable.SymbolTable, name: str) -> bool:
    if name in table.get_identifiers():
        symbol = table.lookup(name)
        if symbol.is_declared_global() and symbol.is_assigned():
            return True
    return any(_declares(child, name) for child in table.get_children())


def _hands_on(
    judged: Judged, path: PurePosixPath, star: ast.ImportFrom, name: str, depth: int
) -> bool:
    target = _module_path(judged, path, star)
    if target is None:
        # Whatever another package exports cannot be seen from here.
        return True
    file = _file(judged, target)
    return file is not None and _binds(judged, file, name, depth + 1)


def _missing_above(judged: Judged, place: Place, node: FunctionNode) -> Iterator[Finding]:
    """Look at the module's own unconditional imports of what the function uses."""
    used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    for statement in judged.module(place.path).body:
        if isinstance(statement, ast.ImportFrom):
            names = {a.name for a in statement.names if (a.asname or a.name) in used}
            yield from _missing(judged, place, statement, names)


def _missing_modules(judged: Judged, place: Place, statement: ast.Import) -> Iterator[Finding]:
    for alias in statement.names:
        first, *parts = alias.name.split(".")
        target = judged.package.joinpath(*parts)
        if first == "sglang" and _file(judged, target) is None:
            site = Site(place.path, statement.lineno, place.block.qualname)
            yield Finding(site, f"the module {target}", "none", "see where it is now")


def _missing(
    judged: Judged, place: Place, statement: ast.ImportFrom, names: set[str]
) -> Iterator[Finding]:
    target = _module_path(judged, place.path, statement)
    if target is None:
        return
    file = _file(judged, target)
    for name in sorted(names - {"*"}):
        inner = _file(judged, target / name)
        if inner is not None or (file is not None and _offers(judged, file, name)):
            continue
        yield Finding(
            Site(place.path, statement.lineno, place.block.qualname),
            f"{name} in {target}",
            "no such name there" if file is not None else "no such module",
            "see where it is defined now",
            ast.unparse(statement)[:200],
        )


def _offers(judged: Judged, file: PurePosixPath, name: str) -> bool:
    try:
        return _binds(judged, file, name) or _binds(judged, file, "__getattr__")
    except Refused:
        return False


def _module_path(
    judged: Judged, path: PurePosixPath, statement: ast.ImportFrom
) -> PurePosixPath | None:
    """Give the path of an imported module without its ending, None outside of the package."""
    parts = (statement.module or "").split(".") if statement.module else []
    if statement.level:
        return path.parents[statement.level - 1].joinpath(*parts)
    if parts[0] != "sglang":
        return None
    return judged.package.joinpath(*parts[1:])


def _file(judged: Judged, target: PurePosixPath) -> PurePosixPath | None:
    candidates = (target / "__init__.py", target.with_name(f"{target.name}.py"))
    return next((path for path in candidates if judged.overlay.read(path) is not None), None)
