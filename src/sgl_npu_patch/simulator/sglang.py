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
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Literal

import torch
import torch._dynamo  # fails later, once a stub stands in for triton
import torch._inductor.utils  # the same

Device = Literal["cpu", "cuda", "hip", "npu", "xpu"]
Provided = ModuleType | Mapping[str, object] | None

DISPATCH = "get_dispatch_device_backend"
VENDORED = "sglang.srt.hardware_backend.npu.batch_invariant_ops"

_NPU_PACKAGES = ("torch_npu", "batch_invariant_ops")
_CUDA_PACKAGES = ("deep_gemm", "flashinfer", "sgl_kernel")
_KEPT = sys.stdlib_module_names | {"numpy", "sglang", "torch", "typing_extensions"}
_PREDICATES = ("cpu", "cuda", "cuda_alike", "hip", "hpu", "mps", "musa", "npu", "xpu")


class Stub:
    """Stand in for anything.

    Callable, falsy and empty; usable as a base class, a decorator or an annotation.
    """

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = Stub(f"{self.__name}.{name}")
        self.__dict__[name] = child
        return child

    def __call__(self, *args: object, **kwargs: object) -> Stub:
        return Stub(f"{self.__name}()")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<stub {self.__name}>"

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return False

    def __getitem__(self, key: object) -> Stub:
        return Stub(f"{self.__name}[]")

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __compare(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __compare

    def __combine(self, other: object) -> Stub:
        return self

    __or__ = __ror__ = __and__ = __rand__ = __add__ = __radd__ = __combine
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __combine


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
        value = importlib.import_module(full) if self._execution.knows(full) else Stub(full)
        self.__dict__[name] = value
        return value


@dataclass(frozen=True)
class _Parsed:
    """One source file; `roots` are the packages that it imports anywhere."""

    code: CodeType
    roots: frozenset[str]


@cache
def _parse(file: Path) -> _Parsed:
    tree = ast.parse(file.read_bytes(), str(file))
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
    gives modules or attributes of stub modules by dotted name; None makes the import fail. `real`
    names further modules, or packages with all that is in them, to take from the tree. Entering it
    again later goes on with the same modules; two executions may be nested.
    """

    def __init__(
        self,
        tree: Path,
        device: Device = "npu",
        provide: Mapping[str, Provided] | None = None,
        real: Iterable[str] = (),
    ) -> None:
        self.package = package_folder(tree)
        self.device = device
        self.compiled: list[Compiled] = []
        absent = (*_NPU_PACKAGES, *(_CUDA_PACKAGES if device == "npu" else ()))
        self._provide: dict[str, Provided] = dict.fromkeys(absent)
        self._attributes: dict[str, dict[str, object]] = {
            "sglang.srt.utils": utilities(device),
            "sglang.srt.utils.common": utilities(device),
            "sglang.srt.runtime_context": {"get_platform": partial(platform, device)},
        }
        self._attributes["sglang.srt.utils.common"][DISPATCH] = self._dispatch_key
        for name, given in (provide or {}).items():
            if given is None or isinstance(given, ModuleType):
                self._provide[name] = given
            else:
                self._provide.pop(name, None)
                self._attributes.setdefault(name, {}).update(given)
        self._real = {VENDORED, *real}
        self._roots = {"sglang", "triton"} | {
            name.partition(".")[0] for name in (*self._provide, *self._attributes)
        }
        self._mine: dict[str, Any] = dict(self._provide)
        self._saved: dict[str, Any] = {}
        self._compile: Any = None
        self._entered = 0

    def __enter__(self) -> Execution:
        self._entered += 1
        if self._entered == 1:
            for root in sorted(self._roots):
                self._displace(root)
            sys.modules.update(self._mine)
            sys.meta_path.insert(0, self)
            self._compile = torch.compile
            vars(torch)["compile"] = self._record_compile
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        vars(torch)["compile"] = self._compile
        sys.meta_path.remove(self)
        self._mine = {name: sys.modules.pop(name) for name in list(sys.modules) if self._owns(name)}
        sys.modules.update(self._saved)
        self._saved = {}

    def load(self, name: str) -> ModuleType:
        """Return the tree's own module of that dotted name, executed now if it was not yet."""
        if not self._entered:
            raise RuntimeError("enter the execution before loading from it")
        if self.file(name) is None:
            raise LookupError(f"{self.package} has no {name}")
        self._real.add(name)
        return self._import(name)

    def attribute(self, module: str, name: str) -> Any:
        """Return what executed code would get from a module, stub or real."""
        return getattr(self._import(module), name)

    def file(self, name: str) -> Path | None:
        """Return the tree's source file of a dotted module name, or None."""
        stem = self.package.joinpath(*name.split(".")[1:])
        return next(
            (
                path
                for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py")
                if path.is_file()
            ),
            None,
        )

    def knows(self, name: str) -> bool:
        """Tell whether importing that name gives more than an empty stub."""
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
        module = module_of(self.package, DISPATCH, "sglang.srt.utils.common")
        file = self.file(module)
        relative = str(file.relative_to(self.package)) if file else f"a file for {DISPATCH}"
        return cut_function(self.package, relative, DISPATCH, utilities(self.device))()

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

    def _owns(self, name: str) -> bool:
        return name.partition(".")[0] in self._roots

    def _displace(self, root: str) -> None:
        for name in list(sys.modules):
            if name == root or name.startswith(f"{root}."):
                self._saved[name] = sys.modules.pop(name)

    def _stub_roots(self, roots: Iterable[str]) -> None:
        for root in roots:
            if root not in _KEPT and root not in self._roots:
                self._displace(root)
                self._roots.add(root)

    def _record_compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: self._record_compile(function, **options)
        compiled = Compiled(model, options)
        self.compiled.append(compiled)
        return compiled


def package_folder(tree: Path) -> Path:
    """Return the package of a tree given as repository root, `python` folder or package."""
    for folder in (tree / "python" / "sglang", tree / "sglang", tree):
        if (folder / "srt").is_dir():
            return folder
    raise FileNotFoundError(f"no sglang package in {tree}")


def module_of(tree: Path, name: str, usual: str) -> str:
    """Return the dotted name of the module that defines a function or list, wherever it moved.

    That is `usual`, where it is defined in most trees, unless it is defined in others only.
    """
    found = _definitions(package_folder(tree)).get(name, ())
    return usual if usual in found or not found else found[0]


_DEFINED = (
    DISPATCH,
    "enable_batch_invariant_mode",
    "_handle_deterministic_inference",
    "DETERMINISTIC_ATTENTION_BACKEND_CHOICES",
    "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND",
)
"""What may have moved to another module."""
_DEFINITION = re.compile(
    rb"^(?:[ \t]*def (%(names)s)\b|(%(names)s)[ \t]*[:=])"
    % {b"names": "|".join(_DEFINED).encode()},
    re.MULTILINE,
)


@cache
def _definitions(package: Path) -> dict[str, tuple[str, ...]]:
    """Read the tree once for the modules that define each of the names."""
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted((package / "srt").rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for match in _DEFINITION.finditer(file.read_bytes()):
            name = (match[1] or match[2]).decode()
            found[name] = (*found.get(name, ()), module)
    return found


def utilities(device: Device) -> dict[str, object]:
    """Return what of `sglang.srt.utils` decides how the executed modules behave on a device."""

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


def cut_function(
    tree: Path, relative: str, name: str, namespace: Mapping[str, object]
) -> FunctionType:
    """Execute one top-level function of a file alone, its globals being `namespace`.

    For files too heavy to execute whole. Decorators are dropped.
    """
    file = package_folder(tree) / relative
    scope: dict[str, Any] = {"__builtins__": builtins, **namespace}
    exec(_function_code(file, name), scope)  # noqa: S102  # executing it is the purpose
    function: FunctionType = scope[name]
    return function


@cache
def _function_code(file: Path, name: str) -> CodeType:
    found = [
        node
        for node in ast.parse(file.read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} functions {name} in {file}, not one")
    found[0].decorator_list = []
    return compile(ast.Module([*found], []), str(file), "exec")


_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """Hash as SGLang's Triton kernel of that name does, on a CPU.

    MurmurHash3_x86_32 over seed (low word, high word), position and column, from 0. Takes `seed`
    and `positions` of shape (n,), `col_indices` of shape (m,); returns uint32 of shape (n, m).
    """
    if seed.shape != positions.shape or seed.dim() != 1 or col_indices.dim() != 1:
        raise ValueError(f"{seed.shape=} {positions.shape=} {col_indices.shape=}")
    words = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.long()
    low, high = words & _MASK, (words >> 32) & _MASK
    rows = torch.stack([low, high, positions.long() & _MASK])[:, :, None]
    state = torch.zeros_like(rows[0])
    for block in (*rows, (col_indices.long() & _MASK)[None, :]):
        state = _mix(state, block)
    state = state ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _multiply(_rotate(_multiply(block, _C1), 15), _C2)
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _multiply(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Multiply modulo 2**32, in halves of `factor`: the whole product is too long for int64."""
    high = (value * (factor >> 16)) & 0xFFFF
    return ((high << 16) + value * (factor & 0xFFFF)) & _MASK


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _is(name: str, device: Device) -> bool:
    return device in ("cuda", "hip") if name == "cuda_alike" else name == device


def _get_bool_env_var(name: str, default: str = "false") -> bool:
    return os.getenv(name, default).lower() in ("true", "1")
