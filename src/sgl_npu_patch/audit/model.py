"""Follow what one model uses: its definitions, those that they name, and so on."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sgl_npu_patch.audit.parsed import WHOLE, Parsed
from sgl_npu_patch.engine.errors import Refused, Site

_FOLLOWED = ("srt/models", "srt/layers", "srt/hardware_backend/npu", "kernels")
_ALWAYS = (
    "srt/hardware_backend/npu/attention",
    "srt/hardware_backend/npu/batch_invariant_ops",
    "srt/layers/attention/ascend_backend.py",
    "srt/batch_invariant_ops",
    "srt/server_args.py",
    "srt/arg_groups",
    "srt/utils",
)
"""What the launch chooses rather than the model, and every request runs through."""


def uses(parsed: Parsed, model_file: str) -> Callable[[Site], bool]:
    """Give a test of whether a model may run what stands at a place.

    Args:
        model_file: relative to the package, or to the tree.

    Raises:
        Refused: there is no such file.
    """
    package = parsed.tree.package
    given = PurePosixPath(model_file)
    path = next((p for p in (package / given, given) if parsed.tree.read(p) is not None), None)
    if path is None or not path.is_relative_to(package):
        raise Refused(f"{model_file}: the tree has no such file; name it as srt/models/qwen3.py")
    reached = _Closure(parsed).reach(path)

    def used(site: Site) -> bool:
        relative = parsed.relative(site.path)
        if site.path in parsed.samplers or any(map(relative.is_relative_to, _ALWAYS)):
            return True
        names = reached.get(site.path, set())
        whole = WHOLE in names or (not site.symbol and bool(names))
        return whole or site.symbol.partition(".")[0] in names

    return used


@dataclass
class _Module:
    """Hold a module's definitions and where its names come from."""

    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imported: dict[str, tuple[PurePosixPath, str]] = field(default_factory=dict)


@dataclass
class _Closure:
    parsed: Parsed
    modules: dict[PurePosixPath, _Module] = field(default_factory=dict)

    def reach(self, path: PurePosixPath) -> dict[PurePosixPath, set[str]]:
        """List, by file, the top-level names that may be run; a star for all of a file."""
        found: dict[PurePosixPath, set[str]] = defaultdict(set)
        waiting = [(path, WHOLE)]
        while waiting:
            file, name = waiting.pop()
            if name in found[file] or not self._is_followed(file):
                continue
            found[file].add(name)
            waiting += self._named(file, name)
        return dict(found)

    def _is_followed(self, path: PurePosixPath) -> bool:
        relative = self.parsed.relative(path)
        return any(relative.is_relative_to(folder) for folder in _FOLLOWED)

    def _named(self, path: PurePosixPath, name: str) -> Iterator[tuple[PurePosixPath, str]]:
        """Yield what a definition of a file names, in it and elsewhere."""
        module = self._module(path)
        if name == WHOLE:
            nodes = list(module.definitions.values())
        else:
            nodes = [module.definitions[name]] if name in module.definitions else []
            if not nodes and name in module.imported:
                yield module.imported[name]
        for node in (each for top in nodes for each in ast.walk(top)):
            if isinstance(node, ast.Name):
                if node.id in module.definitions:
                    yield path, node.id
                elif node.id in module.imported:
                    yield module.imported[node.id]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                target = module.imported.get(node.value.id)
                if target is not None and target[1] == WHOLE:
                    yield target[0], node.attr
            elif isinstance(node, ast.ImportFrom):
                yield from (target for _, target in self._imported(node, path))

    def _module(self, path: PurePosixPath) -> _Module:
        if path not in self.modules:
            tree, where = self.parsed.module(path), self.parsed.places(path)
            module = self.modules[path] = _Module()
            for node in _at_top(tree.body):
                if where[node].where == "elsewhere":
                    continue
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    module.definitions[node.name] = node
                elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    names = [each.id for each in targets if isinstance(each, ast.Name)]
                    module.definitions |= dict.fromkeys(names, node)
                elif isinstance(node, ast.ImportFrom):
                    module.imported |= dict(self._imported(node, path))
        return self.modules[path]

    def _imported(
        self, node: ast.ImportFrom, path: PurePosixPath
    ) -> Iterator[tuple[str, tuple[PurePosixPath, str]]]:
        for name, file, what in self.parsed.imports(node, path):
            yield name, (file, what)


def _at_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield a module's statements, those under tests and in attempts among them."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            parts = [node.body, node.orelse, *(h.body for h in getattr(node, "handlers", []))]
            for part in parts:
                yield from _at_top(part)
