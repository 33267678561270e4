"""Execute modules of an SGLang tree alone, every other import resolved to a stub.

SGLang cannot be imported without an accelerator and a hundred packages, but the modules that the
patch changes need little of it. An `Execution` puts its own `sglang` package into `sys.modules`
while it is entered: the modules asked for, and the vendored ones, are the tree's real files; the
rest of `sglang` and every third-party package that these files import are stubs. Functions that
import when they are called must be called while it is entered.

Stricter than a stub, on purpose: `torch_npu` and `batch_invariant_ops` are missing unless the test
provides them, and on an NPU so are the packages that exist for CUDA only.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

import torch

from sgl_npu_patch.codemods.upstream.symbols import DISPATCH, Symbol
from sgl_npu_patch.simulator.modules import (
    NotInTree,
    cut_function,
    package_folder,
    parsed,
    require,
    source_file,
)
from sgl_npu_patch.simulator.stubs import Stub

Device = Literal["cpu", "cuda", "hip", "npu", "xpu"]
Provided = ModuleType | Mapping[str, object] | None

VENDORED = "sglang.srt.hardware_backend.npu.batch_invariant_ops"

_NPU_PACKAGES = ("torch_npu", "batch_invariant_ops")
_CUDA_PACKAGES = ("deep_gemm", "flashinfer", "sgl_kernel")
_KEPT = sys.stdlib_module_names | {"numpy", "sglang", "torch", "typing_extensions"}
_ASKING = ("torch._dynamo", "torch._inductor")
"""Packages of torch that look for triton, in whose place a stub must not stand then. They take as
long to import as the rest of torch, and hardly a tree needs them."""
_PREDICATES = ("cpu", "cuda", "cuda_alike", "hip", "hpu", "mps", "musa", "npu", "xpu")


class _StubModule(ModuleType):
    """A module with every attribute: the submodule if the execution knows one, else a stub."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__all__: list[str] = []
        self._execution = execution

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        value = self._execution.stubbed(full, name)
        self.__dict__[name] = value
        return value


@dataclass(frozen=True)
class _Parsed:
    """One source file; `roots` are the packages that it imports anywhere."""

    code: CodeType
    roots: frozenset[str]


@cache
def _parse(file: Path) -> _Parsed:
    tree = parsed(file)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    roots = frozenset(name.partition(".")[0] for name in names)
    return _Parsed(compile(tree, str(file), "exec", dont_inherit=True), roots)


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compile a file once a process, and leave no bytecode beside it: the tree may be shared."""

    def get_code(self, fullname: str) -> CodeType | None:
        return _parse(Path(self.path)).code


class _Aside(importlib.abc.Loader):
    """Load a module of torch as if no execution were entered."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        entered = [finder for finder in sys.meta_path if isinstance(finder, Execution)]
        for execution in entered:
            execution._step_out()
        try:
            self._loader.exec_module(module)
        finally:
            for execution in reversed(entered):
                execution._step_in()


class Compiled:
    """What `torch.compile` made of a function in an execution: it counts calls and runs eagerly."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function = function
        self.disabled = bool(options.get("disable"))
        self.calls = 0
        self.__name__ = getattr(function, "__name__", "compiled")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


class Execution(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An SGLang of which only chosen modules are real, on a machine with one kind of device.

    `tree` is a folder with `sglang` or `python/sglang` in it, or that package itself. `provide`
    gives packages beside SGLang, as modules or as attributes of stub modules, by dotted name; None
    makes the import fail. `names` gives functions and constants of SGLang's stub modules, whichever
    of them a tree imports them from. `real` names further modules, or packages with all that is in
    them, to take from the tree. Entering it again later goes on with the same modules; two
    executions may be nested.
    """

    also_real: ClassVar[set[str]] = set()
    """Modules that every execution takes from the tree: a check turned out to need them."""

    def __init__(
        self,
        tree: Path,
        device: Device = "npu",
        provide: Mapping[str, Provided] | None = None,
        real: Iterable[str] = (),
        names: Mapping[str, object] | None = None,
    ) -> None:
        self.package = package_folder(tree)
        self.device = device
        self.compiled: list[Compiled] = []
        absent = (*_NPU_PACKAGES, *(_CUDA_PACKAGES if device == "npu" else ()))
        self._provide: dict[str, Provided] = dict.fromkeys(absent)
        self._attributes: dict[str, dict[str, object]] = {}
        for name, given in (provide or {}).items():
            if given is None or isinstance(given, ModuleType):
                self._provide[name] = given
            else:
                self._provide.pop(name, None)
                self._attributes.setdefault(name, {}).update(given)
        self._names: dict[str, object] = {
            **utilities(device),
            "get_platform": partial(platform, device),
            **dict.fromkeys(DISPATCH.names, self._dispatch_key),
            **(names or {}),
        }
        self._real = {VENDORED, *real, *self.also_real}
        self._roots = {"sglang", "triton"} | {
            name.partition(".")[0] for name in (*self._provide, *self._attributes)
        }
        self._mine: dict[str, Any] = dict(self._provide)
        self._saved: dict[str, Any] = {}
        # So that entering it again costs no look at each of a thousand modules.
        self._of_others: set[str] = set()
        self._compile: Any = None
        self._entered = 0

    def __enter__(self) -> Execution:
        self._entered += 1
        if self._entered == 1:
            self._step_in()
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered -= 1
        if not self._entered:
            self._step_out()

    def _step_in(self) -> None:
        self._displace(self._roots)
        sys.modules.update(self._mine)
        sys.meta_path.insert(0, self)
        self._compile = torch.compile
        vars(torch)["compile"] = self._record_compile

    def _step_out(self) -> None:
        vars(torch)["compile"] = self._compile
        sys.meta_path.remove(self)
        names = sys.modules.keys() - self._of_others
        self._mine = {name: sys.modules.pop(name) for name in names if self._owns(name)}
        self._of_others = set(sys.modules)
        sys.modules.update(self._saved)
        self._saved = {}

    def load(self, name: str) -> ModuleType:
        """Return the tree's own module of that dotted name, executed now if it was not yet."""
        if not self._entered:
            raise RuntimeError("enter the execution before loading from it")
        if self.file(name) is None:
            raise NotInTree(f"the tree has no {name}")
        self._real.add(name)
        return self._import(name)

    def defining(self, symbol: Symbol) -> ModuleType:
        """Return the tree's own module that defines a symbol; see `load`.

        It is loaded as SGLang does, through the module that usually defines it, where it may import
        from that in its turn.
        """
        module = require(self.package, symbol).module
        for usual in symbol.modules:
            if usual != module and self._is_real(usual):
                self._import(usual)
        return self.load(module)

    def value(self, symbol: Symbol) -> Any:
        """Return what the tree defines under a symbol, executed now if it was not yet."""
        return getattr(self.defining(symbol), require(self.package, symbol).name)

    def file(self, name: str) -> Path | None:
        """Return the tree's source file of a dotted module name, or None."""
        return source_file(self.package, name)

    @contextmanager
    def replaced(self, symbol: Symbol, value: object) -> Iterator[None]:
        """Bind a symbol to another value in each of the tree's modules that has it."""
        name = require(self.package, symbol).name
        modules = [*self._mine.values()] if not self._entered else [*sys.modules.values()]
        held = [
            vars(module)
            for module in modules
            if isinstance(module, ModuleType)
            and self._is_real(module.__name__)
            and name in vars(module)
        ]
        before = [module[name] for module in held]
        for module in held:
            module[name] = value
        try:
            yield
        finally:
            for module, own in zip(held, before, strict=True):
                module[name] = own

    def stubbed(self, full: str, name: str) -> Any:
        """Return what a stub module has under a name: a submodule, what was given, or a stub."""
        if self._knows(full) or self._is_submodule(full):
            return importlib.import_module(full)
        if name in self._names and full.partition(".")[0] == "sglang":
            return self._names[name]
        return Stub(full)

    def _knows(self, name: str) -> bool:
        """Report whether importing that name gives more than an empty stub."""
        return (
            name in self._provide
            or name in self._attributes
            or any(known.startswith(f"{name}.") for known in self._attributes)
            or self._is_real(name)
        )

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(_ASKING):
            return _aside(fullname, path)
        if not self._owns(fullname):
            return None
        if self._is_real(fullname) and (file := self.file(fullname)) is not None:
            self._stub_roots(_parse(file).roots)
            return importlib.util.spec_from_file_location(
                fullname, file, loader=_SourceLoader(fullname, str(file))
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _StubModule(spec.name, self)
        module.__dict__.update(self._attributes.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None

    def _dispatch_key(self) -> Any:
        return cut_function(self.package, DISPATCH, utilities(self.device))()

    def _import(self, name: str) -> ModuleType:
        """Import without a trace: some modules warn of, and set, environment variables."""
        before = dict(os.environ)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return importlib.import_module(name)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _is_real(self, name: str) -> bool:
        chosen = any(name == r or name.startswith(f"{r}.") for r in self._real)
        return chosen and self.file(name) is not None

    def _is_submodule(self, full: str) -> bool:
        """Report whether that is a module of the tree, and no name that its package binds."""
        if self.file(full) is None:
            return False
        package, _, name = full.rpartition(".")
        head = self.file(package)
        return head is None or name.encode() not in head.read_bytes()

    def _owns(self, name: str) -> bool:
        return name.partition(".")[0] in self._roots

    def _displace(self, roots: Collection[str]) -> None:
        for name in sys.modules.keys() - self._of_others:
            if name.partition(".")[0] in roots:
                self._saved[name] = sys.modules.pop(name)

    def _stub_roots(self, roots: Iterable[str]) -> None:
        new = {root for root in roots if root not in _KEPT} - self._roots
        if new:
            self._of_others.clear()
            self._displace(new)
            self._roots |= new

    def _record_compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: self._record_compile(function, **options)
        compiled = Compiled(model, options)
        self.compiled.append(compiled)
        return compiled


def _aside(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Aside(spec.loader)
    return spec


def utilities(device: Device) -> dict[str, object]:
    """Return what of SGLang's utilities decides how the executed modules behave on a device."""

    def answer(value: bool) -> Callable[[], bool]:
        return lambda: value

    values = {f"is_{name}": answer(_is(name, device)) for name in _PREDICATES}
    return {
        **values,
        "get_bool_env_var": _get_bool_env_var,
        "get_int_env_var": lambda name, default=0: int(os.getenv(name, default)),
        "crash_on_warnings": answer(False),
        "parse_connector_type": lambda url: url.partition("://")[0] if "://" in url else "",
    }


def platform(device: Device) -> SimpleNamespace:
    """Return what `get_platform()` of the newer releases answers on a device."""
    values: dict[str, object] = {f"is_{name}": _is(name, device) for name in _PREDICATES}
    return SimpleNamespace(
        **values,
        is_sm100=False,
        is_sm120=False,
        is_sm100_or_sm110=False,
        has_flashinfer=device == "cuda",
    )


def _is(name: str, device: Device) -> bool:
    return device in ("cuda", "hip") if name == "cuda_alike" else name == device


def _get_bool_env_var(name: str, default: str = "false") -> bool:
    return os.getenv(name, default).lower() in ("true", "1")
