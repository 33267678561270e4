"""List every call of an operator on a tree's NPU path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from sgl_npu_patch.audit.catalogue import Catalogue, Operator, Verdict
from sgl_npu_patch.audit.importers import only_imported_on_npu
from sgl_npu_patch.audit.mode import Mode
from sgl_npu_patch.audit.npu_path import Place, where_of_file
from sgl_npu_patch.audit.parsed import Parsed
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Site, Unparsable
from sgl_npu_patch.verify.npu_calls import Use, find_uses

Kind = Literal["operator", "by-value", "dispatch"]

RUNTIME = ("srt", "kernels")
"""The server's own code; the rest of the package (clients, benchmarks, diffusion) is not on it."""

_PACKAGES = ("torch", "sgl_kernel_npu")
_NPU_ONLY = ("torch_npu.", "torch.ops.npu.", "torch.ops.atb.", "torch.npu.", "sgl_kernel_npu.")
_IN_FILES = (b"torch_npu", b"torch.ops.npu", b"torch.ops.atb", b"sgl_kernel_npu")
_IN_BRANCHES = (b"is_npu", b"_npu", b"NPU", b'"npu"', b"'npu'", b"ascend", b"Ascend")
_NEAR = (rb"(?<!i)npu", rb"ascend")
"""Input is another word."""
_MULTINOMIAL, _LINEAR = "torch.multinomial", "torch.nn.functional.linear"
_NO_TENSORS = ("F", "math", "nn", "np", "numpy", "random", "statistics", "torch")
_WHOLE = re.compile(
    r"len|num|page|token|mask|valid|keep|ids|idx|indices|index|count|diff|prefix|seq|offset|"
    r"pos|block|rank|bs\b|[=<>]=|[<>]|\.(eq|ne|gt|lt|ge|le|bool|int|long)\(|int(32|64)|torch\.bool",
    re.IGNORECASE,
)
_FRACTIONS = re.compile(r"prob|logit|score|weight|softmax|float|hidden|residual", re.IGNORECASE)
_AT_LOAD = re.compile(
    r"process_weights\w*|\w*weight_loader\w*|load_weights\w*|create_weights|post_load_weights|"
    r"\w*preprocess_weights\w*|_?pack_\w+|_compute_cos_sin_cache\w*"
)
_WHOLE_WHY = "Whole numbers add up exactly, in whatever order."
_AT_LOAD_WHY = "It runs while weights are loaded: there is no batch."
_SEEDED_WHY = "The draw has a generator of its own, or stands beside the seeded one."
_EXACT_WHY = "The smallest or largest is the same in whatever order."
_OFF_WHY = "The compiler is off on an NPU."


@dataclass(frozen=True, slots=True)
class Call:
    """Describe one call of an operator on the NPU path.

    Attributes:
        name: the operator as the tree spells it, from its root.
        replaced: the tree's batch-invariant mode replaces it.
    """

    kind: Kind
    name: str
    site: Site
    operator: Operator
    replaced: bool = False

    @property
    def verdict(self) -> Verdict:
        """Say what it is in this tree: what could be replaced and is not, is native."""
        if self.operator.verdict == "replaced" and not self.replaced:
            return "native"
        return self.operator.verdict

    @property
    def about(self) -> str:
        """Name the seam, or the gap of adapted releases, that is about it; empty if none is."""
        return self.operator.covered_by or ""

    @property
    def covered(self) -> bool:
        """Tell whether nothing is left to do about it."""
        return self.verdict in ("replaced", "invariant")


def scan(parsed: Parsed, catalogue: Catalogue, mode: Mode) -> Iterator[Call]:
    """Yield the calls of all files, in the order of paths and lines."""
    files = _files(parsed, catalogue)
    upstreams = parsed.tree.package / PROJECT.vendor_folder / f"{symbols.UPSTREAM_OPS}.py"
    if upstreams not in mode.modules:
        # Not reached where other replacements are put before them.
        files.pop(upstreams, None)
    new = only_imported_on_npu(parsed, files)
    while new:
        parsed.only_npu |= new
        files |= dict.fromkeys(new, ())
        new = only_imported_on_npu(parsed, dict.fromkeys(new, ()))
    for path, near in sorted(files.items()):
        try:
            yield from _File(path, parsed, catalogue, mode).calls(near)
        except RecursionError as error:
            raise Unparsable(path, "its expressions are nested too deeply") from error


def _files(parsed: Parsed, catalogue: Catalogue) -> dict[PurePosixPath, tuple[bytes, ...]]:
    """List the files to look into, with what to look near to; nothing for all of a file."""
    tree = parsed.tree
    everywhere = tuple(
        before + name.encode() + b"(" for name in catalogue.everywhere() for before in (b".", b" ")
    )
    whole = {path for needle in _IN_FILES for path in tree.containing(needle)}
    in_parts = {path for n in (*_IN_BRANCHES, *everywhere) for path in tree.containing(n)}
    found: dict[PurePosixPath, tuple[bytes, ...]] = {}
    for path in sorted(tree.containing(b"torch")):
        relative = parsed.relative(path)
        if relative.parts[0] not in RUNTIME:
            continue
        if path in whole or where_of_file(relative) == "npu" or path in parsed.samplers:
            found[path] = ()
        elif path in in_parts and where_of_file(relative) != "elsewhere":
            found[path] = (*_NEAR, *map(re.escape, everywhere))
    return found


class _File:
    def __init__(
        self, path: PurePosixPath, parsed: Parsed, catalogue: Catalogue, mode: Mode
    ) -> None:
        self._path, self._parsed, self._catalogue, self._mode = path, parsed, catalogue, mode
        self._relative = parsed.relative(path)

    def calls(self, near: tuple[bytes, ...]) -> Iterator[Call]:
        module, where = self._parsed.module(self._path, near), self._parsed.places(self._path, near)
        known: set[ast.AST] = set()
        found = []
        for use in find_uses(module, self._path, _PACKAGES):
            known.add(use.node)
            if self._is_on_path(use, where[use.node]):
                found.append(self._call(use))
        found += self._methods(where, known)
        found += self._by_value(module, where)
        yield from sorted(found, key=lambda call: (call.site.line, call.name))

    def _is_on_path(self, use: Use, place: Place) -> bool:
        name = full_name(use)
        if place.where == "elsewhere" or _is_attribute(use):
            return False
        if place.where == "npu" or name.startswith(_NPU_ONLY):
            return True
        return self._catalogue.find(name).everywhere or self._path in self._parsed.samplers

    def _call(self, use: Use) -> Call:
        name = full_name(use)
        if name == _LINEAR and use.call is not None and _has_bias(use.call):
            name = f"{_LINEAR} with bias"
        return self._judged(name, use.site, self._catalogue.find(name), use.call)

    def _judged(self, name: str, site: Site, operator: Operator, call: ast.Call | None) -> Call:
        why = self._exempt(name, site, operator, call)
        if why:
            operator = Operator("invariant", why, None, operator.source)
        by = _overloads(operator.by or (name,), name, call)
        return Call(
            "operator",
            name,
            site,
            operator,
            operator.verdict == "replaced" and self._mode.replaces(by),
        )

    def _exempt(self, name: str, site: Site, operator: Operator, call: ast.Call | None) -> str:
        if operator.verdict == "invariant":
            return ""
        if any(_AT_LOAD.fullmatch(part) for part in site.symbol.split(".")):
            return _AT_LOAD_WHY
        if call is None:
            return ""
        if operator.sums and _adds_whole_numbers(call):
            return _WHOLE_WHY
        keywords = {each.arg: ast.unparse(each.value) for each in call.keywords}
        if name.endswith("all_reduce") and re.search(r"\b(MIN|MAX)\b", ast.unparse(call)):
            return _EXACT_WHY
        if name == "torch.compile" and re.search("npu", keywords.get("disable", "")):
            return _OFF_WHY
        if name.endswith("multinomial") and ("generator" in keywords or self._is_seeded(site)):
            return _SEEDED_WHY
        return ""

    def _is_seeded(self, site: Site) -> bool:
        """Tell whether a function of the sampler draws by the requests' seeds where it has them."""
        if self._path not in self._parsed.samplers:
            return False
        function = next(
            node
            for node in ast.walk(self._parsed.module(self._path))
            if isinstance(node, ast.FunctionDef)
            and node.lineno <= site.line <= (node.end_lineno or 0)
        )
        return any(
            isinstance(n, ast.Name) and n.id in symbols.DRAW.names for n in ast.walk(function)
        )

    def _methods(self, where: Mapping[ast.AST, Place], known: set[ast.AST]) -> Iterator[Call]:
        methods = self._catalogue.methods()
        for node, place in where.items():
            if not isinstance(node, ast.Call) or place.where != "npu" or node in known:
                continue
            function = node.func
            if not isinstance(function, ast.Attribute) or function.attr not in methods:
                continue
            if re.split(r"\W", ast.unparse(function.value))[0] not in _NO_TENSORS:
                site = Site(self._path, node.lineno, place.symbol)
                yield self._judged(f"Tensor.{function.attr}", site, methods[function.attr], node)

    def _by_value(self, module: ast.Module, where: Mapping[ast.AST, Place]) -> Iterator[Call]:
        """Yield what a module takes before the mode is entered, of what the mode rebinds."""
        for node in _at_import(module):
            if where[node].where == "elsewhere":
                continue
            for name in _taken(node):
                if self._mode.replaces((name,)):
                    site = Site(self._path, node.lineno, "")
                    yield Call("by-value", name, site, _by_value(self._catalogue.find(name)))


_OUT = {
    "aten::mean": "aten::mean.dtype_out",
    "aten::mean.dim": "aten::mean.out",
    "aten::sum.dim_IntList": "aten::sum.IntList_out",
}
"""The overloads with a buffer for the result that are not named by aten's rule."""


def _overloads(names: Iterable[str], called: str, call: ast.Call | None) -> tuple[str, ...]:
    """Name the overloads of aten that a call runs, of those that it runs without keywords."""
    given = {each.arg for each in call.keywords} if call is not None else set()
    found = []
    for name in names:
        if not name.startswith("aten::"):
            found.append(name)
        elif "out" in given:
            out = f"{name}.dtype_out" if "out_dtype" in given else _OUT.get(name, f"{name}.out")
            found.append(out)
        elif "out_dtype" in given:
            found.append(f"{name}.dtype")
        else:
            found.append(f"{name}_" if called.endswith("_") else name)
    return tuple(found)


def full_name(use: Use) -> str:
    """Spell an operator from its root."""
    own = use.namespace.partition(".")[0] in ("torch", "torch_npu", *_PACKAGES)
    namespace = use.namespace if own else f"torch.ops.{use.namespace}"
    # Of another namespace, what follows the operator is part of its name.
    overload = f".{use.overload}" if use.operator in ("npu", "profiler", "contrib") else ""
    return f"{namespace}.{use.operator}{overload}"


def _is_attribute(use: Use) -> bool:
    """Tell a constant of torch's, such as a dtype, from an operator that is passed on."""
    return use.call is None and not full_name(use).startswith(
        ("torch_npu.npu_", "torch_npu._npu_", "torch.ops.")
    )


def _has_bias(call: ast.Call) -> bool:
    given = [*call.args[2:3], *(k.value for k in call.keywords if k.arg in ("bias", None))]
    return any(not (isinstance(each, ast.Constant) and each.value is None) for each in given)


def _adds_whole_numbers(call: ast.Call) -> bool:
    """Judge by the names in what is added up, and by the type that is asked for."""
    is_method = isinstance(call.func, ast.Attribute) and not ast.unparse(call.func).startswith(
        "torch."
    )
    added = [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else []
    added += [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dtype")]
    text = " ".join(map(ast.unparse, added))
    return bool(_WHOLE.search(text)) and not _FRACTIONS.search(text)


def _by_value(operator: Operator) -> Operator:
    return Operator(
        "native",
        "Imported by value, it stays the original operator when the mode rebinds the attribute.",
        operator.covered_by,
        operator.source,
    )


def _at_import(node: ast.AST) -> Iterator[ast.ImportFrom | ast.Assign]:
    """Yield the imports and assignments that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ImportFrom, ast.Assign)):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.expr)):
            yield from _at_import(child)


def _taken(node: ast.ImportFrom | ast.Assign) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
        return
    for part in ast.walk(node.value):
        if isinstance(part, ast.Attribute):
            yield ast.unparse(part)
        elif (
            isinstance(part, ast.Call)
            and ast.unparse(part.func) == "getattr"
            and len(part.args) >= 2
            and isinstance(part.args[1], ast.Constant)
        ):
            yield f"{ast.unparse(part.args[0])}.{part.args[1].value!s}"
