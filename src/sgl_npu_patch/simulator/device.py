"""Make PrivateUse1 an "npu" that computes on the CPU.

`install()` once a process: registrations with torch's dispatcher are global and stay. An npu tensor
is a real `torch.Tensor` on the device "npu:0" whose storage carries the CPU memory that it stands
for; every operator without a kernel of its own runs on that memory. torch_npu's own kernels for
what the patch replaces have stand-ins under PrivateUse1 and AutogradPrivateUse1; their last bits
depend on the size of the batch. Under `adversarial()` so do those of every other reduction.

Nothing is pinned, because there is no other memory to copy to: what asks for pinned memory gets
plain memory.

Not simulated: backward formulas, streams, and storages made on the device (`copy.deepcopy` of an
npu tensor).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NPU = "npu"

_HOST_MEMORY = "host_memory"

_HOST_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_MIXED_DEVICES = (
    "aten::copy_",
    "aten::index.",
    "aten::index_put",
    "aten::_index_put_impl_",
)

# torch leaves these without annotations.
_new_library: Callable[[str, str], Any] = torch.library.Library
_setup_backend: Callable[..., None] = backend_registration._setup_privateuseone_for_python_backend

_libraries: list[Any] = []

Observer = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
_observers: list[Observer] = []
_adversaries: list[None] = []

REDUCTIONS = frozenset(
    {
        "_cumsum_out", "_embedding_bag", "_fused_rms_norm", "_log_softmax", "_logcumsumexp",
        "_safe_softmax", "_scaled_dot_product_attention_math",
        "_scaled_dot_product_flash_attention", "_softmax", "_sparse_softmax",
        "_thnn_fused_gru_cell", "_weight_norm_interface", "addbmm", "addmm", "addmv", "addr",
        "baddbmm", "bilinear", "bmm", "convolution", "convolution_overrideable", "cumprod",
        "cumsum", "dist", "dot", "einsum", "embedding_bag", "index_add", "index_reduce",
        "kron", "linalg_vector_norm", "linear", "logcumsumexp", "logsumexp", "matmul", "mean",
        "median", "mm", "mv", "nanmean", "nanmedian", "nansum", "native_batch_norm",
        "native_group_norm", "native_layer_norm", "norm", "prod", "renorm", "rms_norm",
        "scatter_add", "scatter_reduce", "segment_reduce", "softmax", "std", "std_mean", "sum",
        "trace", "trapezoid", "var", "var_mean", "vdot",
    }
)  # fmt: skip
"""aten's operators that add up, multiply up or normalise over elements, by name."""


class Backend:
    """What torch and SGLang ask of `torch.npu`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        pass

    def get_device_name(self, device: object = None) -> str:
        return "Ascend910B (simulated)"

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False


def install(backend: Backend | None = None) -> None:
    """Register the device; a second call does nothing.

    Args:
        backend: what `torch.npu` becomes, if it is to offer more than `Backend`.
    """
    if _libraries:
        return
    _setup_backend(NPU, backend_module=backend or Backend())
    _libraries.extend([_new_library("_", "IMPL"), _new_library("aten", "IMPL")])
    fallback, aten = _libraries
    fallback.fallback(_run_on_host, "PrivateUse1")
    with warnings.catch_warnings():
        # torch warns of an overridden kernel once a process; said here, no test has to expect it.
        warnings.simplefilter("ignore")
        aten.impl("mm", _telling("mm", _native_mm), "PrivateUse1")
        override = _new_library("aten", "IMPL")
        override.impl("mm", _native_mm, "PrivateUse1")
        override._destroy()
    for name, kernel in NATIVE_KERNELS.items():
        if name != "mm":
            aten.impl(name, _telling(name, kernel), "PrivateUse1")
        aten.impl(name, _autograd_node(_operator(f"aten::{name}")), "AutogradPrivateUse1")
    for name in ("empty.memory_format", "empty_strided"):
        original = torch.library.get_kernel(f"aten::{name}", "CPU")
        aten.impl(name, _unpinned(original), "CPU", with_keyset=True)
    aten.impl("_pin_memory", lambda tensor, device=None: tensor.clone(), "CPU")
    _let_storages_be_emptied()


def _let_storages_be_emptied() -> None:
    """Let `UntypedStorage.resize_(0)` free device memory, whose tensors cannot be read any more."""
    native: Any = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage.device.type != NPU:
            resized: torch.UntypedStorage = native(storage, size)
            return resized
        if size:
            raise NotImplementedError(f"resizing device memory to {size} bytes is not simulated")
        setattr(storage, _HOST_MEMORY, None)
        return storage

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]


def be_adversarial() -> None:
    """Be `adversarial` until the process ends."""
    _adversaries.append(None)


@contextmanager
def adversarial() -> Iterator[None]:
    """Let every reduction without a kernel of its own depend on the size of the batch too."""
    _adversaries.append(None)
    try:
        yield
    finally:
        _adversaries.pop()


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call `observer` with the name, arguments and result of every kernel that runs here."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def tell(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Tell the observers of a kernel that ran; every stand-in for the device's kernels does."""
    for observer in _observers:
        observer(name, args, kwargs, result)


def is_reduction(name: str) -> bool:
    """Tell whether an aten operator's result depends on the order of an addition or product."""
    return plain_name(name) in REDUCTIONS


def plain_name(name: str) -> str:
    """Return an operator's name without its namespace, overload and mark of being in place."""
    return name.rpartition("::")[2].partition(".")[0].rstrip("_")


def npu(tensor: torch.Tensor) -> torch.Tensor:
    """Return an npu tensor over the memory of a CPU tensor, with its strides and offset."""
    device_tensor: torch.Tensor = torch._C._acc.create_empty_tensor((0,), tensor.dtype)
    _adopt(device_tensor, tensor.detach())
    return device_tensor


def cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor that shares an npu tensor's memory."""
    with _PlainTensors():
        return _memory(tensor)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != NPU:
        raise TypeError(f"not an npu tensor: {tensor.device}")
    memory = getattr(tensor.untyped_storage(), _HOST_MEMORY, None)
    if memory is None:
        raise RuntimeError("an npu tensor that was freed, or that the simulator did not make")
    # A view of nothing is made faster than a tensor of its own.
    return (
        _empty(tensor.dtype)
        .view(0)
        .set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    )


@cache
def _empty(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)


def in_last_bits(result: torch.Tensor, batch: int) -> torch.Tensor:
    """Return `result` some units in the last place off, as of a kernel that splits by batch size.

    Batches of 1 to 8 all differ from each other, and any larger one from those.
    """
    return moved(result, batch - 1 if batch <= 8 else 8 + batch.bit_length())


def moved(result: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `result` so many units in the last place up, where it is neither zero nor infinite."""
    if not result.is_floating_point():
        return result
    shifted = result
    for _ in range(steps):
        shifted = torch.nextafter(shifted, torch.full_like(shifted, math.inf))
    return torch.where(result.isfinite() & (result != 0), shifted, result)


def _exactly(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Compute in float64 and round once: how this CPU adds up does not reach the result."""
    hosts = [cpu(tensor) for tensor in tensors]
    kinds = {host.dtype for host in hosts}
    if len(kinds) > 1 or not hosts[0].is_floating_point():
        return function(*hosts)
    return function(*(host.double() for host in hosts)).to(hosts[0].dtype)


def _native_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return npu(in_last_bits(_exactly(torch.mm, a, b), a.shape[0]))


def _native_bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return npu(in_last_bits(_exactly(torch.bmm, a, b), a.shape[0] * a.shape[1]))


def _native_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows = math.prod(a.shape[:-1])
    return npu(in_last_bits(_exactly(torch.matmul, a, b), rows))


def _native_addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    result = _exactly(partial(torch.addmm, beta=beta, alpha=alpha), bias, a, b)
    return npu(in_last_bits(result, a.shape[0]))


def _native_mean_dim(
    tensor: torch.Tensor,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    result = _mean(tensor, dim, keepdim, dtype)
    return npu(in_last_bits(result, result.numel()))


def _mean(
    tensor: torch.Tensor, dim: list[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    host = cpu(tensor)
    if not host.is_floating_point() or (dtype is not None and not dtype.is_floating_point):
        return torch.mean(host, dim, keepdim, dtype=dtype)
    return torch.mean(host.double(), dim, keepdim).to(dtype or host.dtype)


def _native_mean(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    batch = tensor.shape[0] if tensor.dim() else 1
    return npu(in_last_bits(_mean(tensor, None, False, dtype), batch))


def _native_log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    host = cpu(tensor).float() if half_to_float else cpu(tensor)
    rows = host.numel() // max(host.shape[dim], 1) if host.dim() else 1
    return npu(in_last_bits(_log_softmax(host, dim), rows))


def _log_softmax(host: torch.Tensor, dim: int) -> torch.Tensor:
    if not host.is_floating_point():
        return torch._log_softmax(host, dim, False)
    return torch._log_softmax(host.double(), dim, False).to(host.dtype)


NATIVE_KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": _native_mm,
    "bmm": _native_bmm,
    "matmul": _native_matmul,
    "addmm": _native_addmm,
    "mean.dim": _native_mean_dim,
    "mean": _native_mean,
    "_log_softmax": _native_log_softmax,
}
"""The aten kernels that torch_npu has for what the patch replaces, as stand-ins."""


def _telling(name: str, kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        result = kernel(*args, **kwargs)
        tell(f"aten::{name}", args, kwargs, result)
        return result

    return run


def _autograd_node(operator: Any) -> Callable[..., torch.Tensor]:
    def redispatch(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            result: torch.Tensor = operator(*args, **kwargs)
        return result

    return redispatch


def _unpinned(kernel: Any) -> Callable[..., torch.Tensor]:
    """Allocate as torch's own kernel does, which asks a device's hooks for pinned memory."""

    def allocate(keys: Any, *args: Any, pin_memory: bool | None = None, **kwargs: Any) -> Any:
        return kernel.call_boxed(keys, *args, **kwargs)

    return allocate


def _operator(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _run_on_host(operator: Any, *args: Any, **kwargs: Any) -> Any:
    if operator.name() == "aten::_copy_from":
        source, target = args[:2]
        _host(target).copy_(_host(source))
        tell(operator.name(), args, kwargs, target)
        return target
    args = _numbers_as_tensors(operator, args)
    hosts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def to_host(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in hosts:
                hosts[id(leaf)] = leaf, _memory(leaf) if leaf.device.type == NPU else leaf
            return hosts[id(leaf)][1]
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return getattr(leaf, _HOST_MEMORY, leaf) if isinstance(leaf, torch.UntypedStorage) else leaf

    def from_host(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for tensor, host in given:
            if host is leaf:
                return tensor
        for tensor, host in given:
            if host.dtype == leaf.dtype and _shares_memory(host, leaf):
                return _view(tensor, leaf)
        return npu(leaf)

    with _PlainTensors():
        host_args, host_kwargs = _mapped(to_host, args), _mapped(to_host, kwargs)
        given = [*hosts.values()]
        _require_one_device(operator, [tensor for tensor, _ in given])
        result = operator(*host_args, **host_kwargs)
        if _adversaries and _adds_up(operator, args):
            _depend_on_batch(result, given)
    for tensor, host in given:
        # An out= operator may have resized what it wrote to.
        if tensor.device.type == NPU and not _same_layout(tensor, host):
            _adopt(tensor, host)
    found = _mapped(from_host, result)
    tell(operator.name(), args, kwargs, found)
    return found


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Map what an operator takes or returns, all of which is flat; pytree takes much longer."""
    if isinstance(value, tuple | list):
        return type(value)([_mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {name: _mapped(function, each) for name, each in value.items()}
    return function(value)


def _numbers_as_tensors(operator: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Wrap numbers where an operator takes tensors: torch hands Python a wrapped one unwrapped."""
    if not any(isinstance(arg, bool | int | float | complex) for arg in args):
        return args
    tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)

    def wrapped(argument: Any, arg: Any) -> Any:
        if str(argument.type) != "Tensor" or isinstance(arg, torch.Tensor):
            return arg
        dtype = None if tensor is None else torch.result_type(tensor, arg)
        return torch.tensor(arg, dtype=dtype)

    return tuple(map(wrapped, operator._schema.arguments, args))


def _adds_up(operator: Any, args: tuple[Any, ...]) -> bool:
    """Report whether a call adds up more than two numbers, whose order could depend on the batch.

    Where each row has one index, as in SGLang's penalties, scatter_add adds one number to another.
    """
    if plain_name(operator.name()) == "scatter_add":
        _, dim, index, *_ = args
        return bool(index.dim() == 0 or index.shape[dim] > 1)
    return is_reduction(operator.name())


def _depend_on_batch(result: Any, given: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Move the last bits of a result; all but the last axis of its first argument is the batch."""
    first = given[0][1] if given else None
    batch = math.prod(first.shape[:-1]) if first is not None else 1
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            leaf.copy_(in_last_bits(leaf, batch))


def _require_one_device(operator: Any, tensors: list[torch.Tensor]) -> None:
    strangers = [t for t in tensors if t.device.type != NPU and t.dim() > 0]
    if strangers and not operator.name().startswith(_MIXED_DEVICES):
        raise RuntimeError(
            f"{operator.name()}: expected all tensors to be on the same device, "
            f"but found npu:0 and {strangers[0].device}"
        )


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return cpu(tensor) if tensor.device.type == NPU else tensor


def _adopt(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Let an npu tensor stand for a CPU tensor's memory, shape and strides."""
    memory = host.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(
        memory.data_ptr(), torch.device(NPU, 0), memory.nbytes()
    )
    setattr(storage, _HOST_MEMORY, memory)
    with torch._C._AutoDispatchBelowADInplaceOrView():
        torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            _HOST_KERNELS, tensor, storage, host.storage_offset(), host.size(), host.stride()
        )


def _view(tensor: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
    """Return a view of an npu tensor with the shape, strides and offset of `layout`.

    Made of the tensor itself, so that a view of an ordinary tensor stays ordinary under inference
    mode.
    """
    with torch._C._AutoDispatchBelowADInplaceOrView():
        view: torch.Tensor = torch.ops.aten.as_strided.default.redispatch(
            _HOST_KERNELS, tensor, layout.size(), layout.stride(), layout.storage_offset()
        )
    return view


def _same_layout(tensor: torch.Tensor, host: torch.Tensor) -> bool:
    return (
        tensor.untyped_storage().data_ptr() == host.untyped_storage().data_ptr()
        and tensor.size() == host.size()
        and tensor.stride() == host.stride()
        and tensor.storage_offset() == host.storage_offset()
    )


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


class _PlainTensors:
    """Keep the CPU side out of inference mode: its tensors outlive it and must stay writable."""

    __slots__ = ("_grad", "_mode")

    def __enter__(self) -> None:
        mode: Any = torch._C._InferenceMode(False)
        mode.__enter__()
        self._mode = mode
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self._grad)
        self._mode.__exit__(None, None, None)
