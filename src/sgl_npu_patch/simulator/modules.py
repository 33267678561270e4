"""Find the modules of an SGLang tree by what they define, wherever a fork moved it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from sgl_npu_patch.codemods.upstream.symbols import Symbol

_DEPTH = 8
"""How many modules a name may be imported through."""


class NotInTree(LookupError):
    """A tree lacks what is to be executed, at least under the name by which it is sought."""


def package_folder(tree: Path) -> Path:
    """Return the package of a tree given as repository root, `python` folder or package."""
    for folder in (tree / "python" / "sglang", tree / "sglang", tree):
        if (folder / "srt").is_dir():
            return folder
    raise FileNotFoundError(f"no sglang package in {tree}")


def source_file(package: Path, module: str) -> Path | None:
    """Return the source file of a dotted module name, or None."""
    stem = package.joinpath(*module.split(".")[1:])
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


class Definition(NamedTuple):
    """Where a tree defines a symbol: under which of its names, and in which module."""

    name: str
    module: str


def find(tree: Path, symbol: Symbol) -> Definition | None:
    """Find where a tree defines a symbol of SGLang, None if nowhere.

    The module that usually defines it says where it is imported from, if that is what is left
    there. Otherwise the whole package is searched.
    """
    return _find(package_folder(tree), symbol)


def require(tree: Path, symbol: Symbol) -> Definition:
    """Find where a tree defines a symbol, or raise `NotInTree`."""
    found = find(tree, symbol)
    if found is None:
        raise NotInTree(f"no module of the tree defines {symbol}")
    return found


def file_of(tree: Path, symbol: Symbol) -> Path:
    """Return the file that defines a symbol, or raise `NotInTree`."""
    package = package_folder(tree)
    file = source_file(package, require(package, symbol).module)
    assert file is not None
    return file


def modules_of(tree: Path, *symbols: Symbol) -> list[str]:
    """List the modules that define these symbols, as far as the tree has them."""
    found = (find(tree, symbol) for symbol in symbols)
    return [*dict.fromkeys(each.module for each in found if each is not None)]


def modules_of_class(tree: Path, symbol: Symbol, *methods: str) -> list[str]:
    """List the module that defines a class, and those of the bases that it has methods from."""
    package = package_folder(tree)
    found = find(package, symbol)
    if found is None:
        return []
    bases = _bases_with(package, found.module, found.name, frozenset(methods))
    return [*dict.fromkeys([found.module, *bases])]


def cut_function(tree: Path, symbol: Symbol, namespace: Mapping[str, object]) -> FunctionType:
    """Execute one top-level function alone, its globals being `namespace`.

    For those in files too heavy to execute whole. Decorators are dropped.

    Raises:
        NotInTree: no module defines it.
    """
    name = require(tree, symbol).name
    scope: dict[str, Any] = {"__builtins__": builtins, **namespace}
    exec(_function_code(file_of(tree, symbol), name), scope)  # noqa: S102  # that is the purpose
    function: FunctionType = scope[name]
    return function


@cache
def _find(package: Path, symbol: Symbol) -> Definition | None:
    for form in reversed(symbol.forms):
        module = _followed(package, form.module, form.name)
        if module is not None:
            return Definition(form.name, module)
    for name in reversed(symbol.names):
        for module in _searched(package, name):
            return Definition(name, module)
    return None


def _followed(package: Path, module: str, name: str, depth: int = _DEPTH) -> str | None:
    """Go from a module that may only import a name to the one that defines it."""
    file = source_file(package, module)
    if file is None or not depth:
        return None
    text = file.read_bytes()
    if _definition(name).search(text):
        return module
    if name.encode() not in text:
        return None
    for bound, (origin, original) in _imports(package, module).items():
        if bound == name:
            return _followed(package, origin, original, depth - 1)
    return None


def _searched(package: Path, name: str) -> Iterator[str]:
    """Search the package for the modules that define a name."""
    for module, text in _texts(package):
        if name.encode() in text and _definition(name).search(text):
            yield module


@cache
def _texts(package: Path) -> list[tuple[str, bytes]]:
    """Read all modules of a package."""
    texts = []
    for file in sorted((package / "srt").rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        texts.append((module, file.read_bytes()))
    return texts


@cache
def _definition(name: str) -> re.Pattern[bytes]:
    """Match a definition of that name, at the top of a module or in a class."""
    return re.compile(
        rb"^(?:[ \t]*(?:def|class)[ \t]+%(name)s\b|%(name)s[ \t]*[:=])"
        % {b"name": re.escape(name).encode()},
        re.MULTILINE,
    )


@cache
def parsed(file: Path) -> ast.Module:
    """Parse a source file, once a process; the result is shared."""
    return ast.parse(file.read_bytes(), str(file))


@cache
def _imports(package: Path, module: str) -> dict[str, tuple[str, str]]:
    """Return what a module imports from others of the package: by the name bound, from where."""
    file = source_file(package, module)
    assert file is not None
    within = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, tuple[str, str]] = {}
    for node in _outside_functions(parsed(file).body):
        if not isinstance(node, ast.ImportFrom):
            continue
        origin = node.module or ""
        if node.level:
            above = within.split(".")
            above = above[: len(above) - node.level + 1]
            origin = ".".join([*above, *filter(None, [origin])])
        if origin.partition(".")[0] == "sglang":
            for alias in node.names:
                found[alias.asname or alias.name] = (origin, alias.name)
    return found


def _outside_functions(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _outside_functions(ast.iter_child_nodes(node))


def _bases_with(package: Path, module: str, name: str, methods: frozenset[str]) -> Iterator[str]:
    file = source_file(package, module)
    classes = parsed(file).body if file is not None else []
    for node in classes:
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        missing = methods - own
        if own & methods:
            yield module
        if not missing:
            return
        for base in node.bases:
            bound = ast.unparse(base)
            origin, original = _imports(package, module).get(bound, (module, bound))
            defines = _followed(package, origin, original)
            if defines is not None and (defines, original) != (module, name):
                yield from _bases_with(package, defines, original, missing)


@cache
def _function_code(file: Path, name: str) -> CodeType:
    found = [
        node
        for node in ast.parse(file.read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(found) != 1:
        raise NotInTree(f"{len(found)} functions {name} in {file}, not one")
    found[0].decorator_list = []
    return compile(ast.Module([*found], []), str(file), "exec")
