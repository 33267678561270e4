"""Check that every call in the tree of a function whose signature matters to a seam still binds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath

from sgl_npu_patch import codemods
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.codemods.upstream.symbols import Symbol
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.verify.findings import Finding, NotApplicable
from sgl_npu_patch.verify.static.judged import Found, FunctionNode, Judged

SEAMS = ("sampler", "batch_invariant", *(name for name, seam in SERIES.items() if seam.vendors))
"""The seams that edit or add functions which the rest of SGLang calls."""


@dataclass(frozen=True, slots=True)
class _Definition:
    path: PurePosixPath
    node: FunctionNode
    owner: str

    @property
    def decorators(self) -> set[str]:
        """Name what decorates it."""
        return {d.id for d in self.node.decorator_list if isinstance(d, ast.Name)}


@dataclass(frozen=True, slots=True)
class Use:
    path: PurePosixPath
    found: Found

    @property
    def call(self) -> ast.Call | None:
        """Give the call, if that is what the name is used for."""
        parent = self.found.parent
        return parent if isinstance(parent, ast.Call) and parent.func is self.found.node else None

    @property
    def site(self) -> Site:
        """Give its place."""
        return Site(self.path, getattr(self.found.node, "lineno", 0), self.found.scope)


def calls_bind(judged: Judged, seam: str) -> Iterator[Finding]:
    """Every call of the functions that the seam changes or calls passes what they take."""
    if judged.outcomes[seam].status in ("not-needed", "withheld"):
        raise NotApplicable(f"{judged.outcomes[seam].status}: {judged.outcomes[seam].reason}")
    known = 0
    for module, name in _called(judged, seam):
        definitions, uses = collect(judged, name, module)
        known += len(definitions)
        for use in uses:
            yield from _unfit(judged, name, use, definitions)
    if not known:
        raise NotApplicable("none of these functions is in this tree")


def _called(judged: Judged, seam: str) -> Iterator[tuple[str, str]]:
    """Yield the functions that a seam adds, with their module, or those that its codemod names."""
    for module in SERIES[seam].vendors:
        path = judged.package / PROJECT.vendor_folder / f"{module}.py"
        if judged.overlay.read(path) is not None:
            for node in judged.module(path).body:
                if isinstance(node, FunctionNode) and not node.name.startswith("_"):
                    yield module, node.name
    if not SERIES[seam].vendors:
        named = vars(import_module(f"{codemods.__name__}.{seam}")).values()
        for symbol in named:
            if isinstance(symbol, Symbol) and symbol.kind == "function":
                yield from (("", name) for name in symbol.names)


def collect(judged: Judged, name: str, module: str = "") -> tuple[list[_Definition], list[Use]]:
    """Find what defines and what uses a name; that of a module of ours, only through it."""
    own = judged.package / PROJECT.vendor_folder / f"{module}.py"
    definitions: list[_Definition] = []
    uses: list[Use] = []
    paths = dict.fromkeys(judged.overlay.mentioning(module or name))
    if judged.overlay.read(own) is not None:
        paths[own] = None
    for path in paths:
        near = list(judged.near(path, name))
        if not module or path == own:
            definitions += (
                _Definition(path, f.node, f.owner if isinstance(f.parent, ast.ClassDef) else "")
                for f in near
                if isinstance(f.node, FunctionNode) and f.node.name == name
            )
        if path != own:
            names = {name, *_renamed(near, name)}
            if len(names) > 1:
                near = list(judged.near(path, *names))
            named = (Use(path, found) for found in near if _is_named(found.node, names))
            uses += (use for use in named if not module or _through(use, module))
    return definitions, uses


def _through(use: Use, module: str) -> bool:
    node = use.found.node
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def _renamed(near: list[Found], name: str) -> set[str]:
    return {
        alias.asname
        for found in near
        if isinstance(found.node, ast.ImportFrom)
        for alias in found.node.names
        if alias.name == name and alias.asname
    }


def _is_named(node: ast.AST, names: set[str]) -> bool:
    """Tell whether a node takes a function by its name; a string may stand in for it."""
    return (
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.Constant) and node.value in names)
    ) and not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _unfit(
    judged: Judged, name: str, use: Use, definitions: list[_Definition]
) -> Iterator[Finding]:
    if use.call is None:
        if not _in_all(judged, use):
            yield Finding(
                use.site,
                f"{name} called by its name, so that its arguments can be seen",
                "it is passed on, so whether what calls it knows its parameters cannot be told",
                "check the call by hand and write it as a call",
            )
        return
    targets = [d for d in definitions if _may_reach(judged, use, d)]
    if not targets and definitions:
        return
    if not targets:
        yield Finding(use.site, f"a definition of {name}", "none", "restore the function")
    shown = ast.unparse(use.call)[:200]
    starred = any(isinstance(a, ast.Starred) for a in use.call.args) or any(
        k.arg is None for k in use.call.keywords
    )
    if starred:
        if not _forwards(use, name):
            yield Finding(
                use.site,
                f"arguments of {name} that can be seen",
                "* or ** in the call, so whether it passes all of them cannot be told",
                "check the call by hand and write the arguments out",
                shown,
            )
        return
    for definition in targets:
        signature = _signature(definition.node)
        given = [None] * (len(use.call.args) + _filled(use, definition))
        named = {k.arg: None for k in use.call.keywords if k.arg}
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            place = Site(definition.path, definition.node.lineno, definition.node.name)
            yield Finding(
                use.site,
                f"arguments for {name}{signature} at {place}",
                str(error),
                "pass what the function takes; the sampler hands seed and positions down",
                shown,
            )


def _in_all(judged: Judged, use: Use) -> bool:
    """Tell whether a string only exports the name."""
    if not isinstance(use.found.node, ast.Constant):
        return False
    return any(
        isinstance(statement, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in statement.targets)
        and any(n is use.found.node for n in ast.walk(statement))
        for statement in judged.module(use.path).body
    )


def _filled(use: Use, definition: _Definition) -> int:
    """Count the arguments that the call does not write: the object of a method."""
    node = use.found.node
    method = definition.owner and "staticmethod" not in definition.decorators
    if not method or not isinstance(node, ast.Attribute):
        return 0
    if "classmethod" in definition.decorators:
        return 1
    return 0 if isinstance(node.value, ast.Name) and node.value.id == definition.owner else 1


def _forwards(use: Use, name: str) -> bool:
    """Tell whether a function of the same name hands on exactly what it was given."""
    function, call = use.found.function, use.call
    if function is None or call is None or function.name != name:
        return False
    args, kwargs = function.args.vararg, function.args.kwarg
    return (
        args is not None
        and kwargs is not None
        and len(call.args) == 1
        and ast.unparse(call.args[0]) == f"*{args.arg}"
        and [(k.arg, ast.unparse(k.value)) for k in call.keywords] == [(None, kwargs.arg)]
    )


def _may_reach(judged: Judged, use: Use, definition: _Definition) -> bool:
    """Tell whether a call may land in a definition: in the same hierarchy, or of no known class."""
    node = use.found.node
    if not isinstance(node, ast.Attribute):
        return not definition.owner
    on = ast.unparse(node.value)
    if on not in ("self", "cls", "super()") or not definition.owner:
        return True
    return definition.owner == use.found.owner or bool(
        {use.found.owner, definition.owner}
        & (_bases(judged, use.found.owner) | _bases(judged, definition.owner))
    )


def _bases(judged: Judged, name: str) -> set[str]:
    """Name the classes above one, as far as the package defines them."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for path in judged.overlay.mentioning(f"class {current}") if current.isascii() else ():
            for near in judged.near(path, f"class {current}"):
                node = near.node
                if isinstance(node, ast.ClassDef) and node.name == current:
                    above = {ast.unparse(base).rpartition(".")[2] for base in node.bases} - found
                    found |= above
                    waiting += above
    return found


def _signature(node: FunctionNode) -> inspect.Signature:
    arguments, kinds = node.args, inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    found = []
    for index, each in enumerate(positional):
        only = index < len(arguments.posonlyargs)
        kind = kinds.POSITIONAL_ONLY if only else kinds.POSITIONAL_OR_KEYWORD
        found.append(kinds(each.arg, kind, default=kinds.empty if index < required else ...))
    if arguments.vararg:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        given = kinds.empty if default is None else ...
        found.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=given))
    if arguments.kwarg:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)
