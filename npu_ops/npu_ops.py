"""Make the operators of SGLang's Ascend path batch-invariant.

``enable`` puts wrappers around Ascend's batch-invariant extension in place of aten's
matrix products, means, sums and softmax, and of the fused NPU operators that SGLang
calls as attributes. The extension's kernels take less than aten does (reductions over
the last axis, floating types, contiguous input), so the wrappers bring every call into
that form and give back the shape and dtype that aten would have given.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch_npu

_ATTENTION = "npu_fused_infer_attention_score"
_MAX_WORKSPACE = f"_{_ATTENTION}_get_max_workspace"
_ADD_RMS_NORM = "npu_add_rms_norm"

_EXTENSION_ATTENTION = f"{_ATTENTION}_batch_invariant"
_EXTENSION_MAX_WORKSPACE = f"_{_EXTENSION_ATTENTION}_get_max_workspace"
_EXTENSION_INFER_OUTPUT = f"_{_EXTENSION_ATTENTION}_infer_output"
_REQUIRED_OPERATORS = (
    "npu_mm_batch_invariant",
    "npu_matmul_batch_invariant",
    "npu_reduce_mean_batch_invariant",
    "npu_log_softmax_batch_invariant",
    _EXTENSION_ATTENTION,
)

# What the extension's reductions take.
_KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

_ABSENT = object()

_Kernel = Callable[..., torch.Tensor]

# torch ships both without annotations.
_new_library: Callable[[str, str], Any] = torch.library.Library
_broadcast_shapes: Callable[..., torch.Size] = torch.broadcast_shapes


@dataclass
class _State:
    """Hold what ``enable`` did in this process."""

    library: Any = None
    originals: dict[tuple[ModuleType, str], object] = field(default_factory=dict)
    enable_bmm: bool = True
    graph_handler_registered: bool = False


_state = _State()


def enable(dispatch_key: str = "NPU", enable_bmm: bool = True) -> torch.library.Library:
    """Replace the operators and return the library that holds the registrations.

    The caller destroys the library when it leaves the mode and calls ``disable`` for
    what is not in it. A library of an earlier call that is still alive is destroyed
    first; the originals of that call are kept. When a step fails, the steps before it
    are undone and the error is raised again. Raises RuntimeError when the extension's
    operators are missing.
    """
    _require_extension()
    if _state.library is not None:
        _state.library._destroy()
        _state.library = None
    library = _new_library("aten", "IMPL")
    try:
        for name, kernel in _aten_kernels(enable_bmm).items():
            if not _is_in_aten(name):
                continue
            library.impl(f"aten::{name}", kernel, dispatch_key)
        _rebind_npu_operators()
        _register_graph_handler()
    except BaseException:
        disable()
        library._destroy()
        raise
    _state.library = library
    _state.enable_bmm = enable_bmm
    result: torch.library.Library = library
    return result


def disable() -> None:
    """Give every rebound attribute back the object it had before ``enable``.

    The library that ``enable`` returned stays with its owner, who destroys it.
    """
    while _state.originals:
        (namespace, name), original = _state.originals.popitem()
        if original is _ABSENT:
            vars(namespace).pop(name, None)
        else:
            setattr(namespace, name, original)


def bmm_enabled() -> bool:
    """Return the last ``enable_bmm`` that ``enable`` put into force, at first True."""
    return _state.enable_bmm


def graph_capture_supported() -> bool:
    """Return whether a captured graph can update the replaced attention operator.

    Takes a torch_npu that lets handlers be registered by operator and version 2.0.0 of
    the extension. Where it is true, ``enable`` registers the handler.
    """
    offered = all(
        hasattr(torch_npu.npu, name)
        for name in ("NpuGraphOpHandler", "register_npu_graph_handler")
    )
    if not offered:
        return False
    _load_extension()
    return (
        _has_out_overload()
        and _has_operator(_EXTENSION_MAX_WORKSPACE)
        and _has_operator(_EXTENSION_INFER_OUTPUT)
    )


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices as aten::mm does."""
    return _product("mm", a, b, torch.ops.batch_invariant_ops.npu_mm_batch_invariant)


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two batches of matrices as aten::bmm does."""
    _require_batches("bmm", a, b)
    _require_products("bmm", a, b)
    if a.numel() == 0 or b.numel() == 0:
        return a.new_zeros((a.shape[0], a.shape[1], b.shape[2]))
    result: torch.Tensor = torch.ops.batch_invariant_ops.npu_matmul_batch_invariant(
        a.contiguous(), b.contiguous()
    )
    return result


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply tensors as aten::matmul does, with vectors and broadcast batches.

    Rows times one matrix are a single product of two matrices, so that a linear layer
    gives the same bits whether its input is folded before or here.
    """
    if a.dim() == 0 or b.dim() == 0:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, "
            f"but they are {a.dim()}D and {b.dim()}D"
        )
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if right.dim() == 2:
        rows = left.reshape(math.prod(left.shape[:-1]), left.shape[-1])
        product = _product(
            "matmul",
            rows,
            right,
            torch.ops.batch_invariant_ops.npu_matmul_batch_invariant,
        ).reshape(*left.shape[:-1], right.shape[-1])
    else:
        batch = _broadcast_shapes(left.shape[:-2], right.shape[:-2])
        product = bmm(_as_batch(left, batch), _as_batch(right, batch))
        product = product.reshape(*batch, left.shape[-2], right.shape[-1])
    if a.dim() == 1:
        product = product.squeeze(-2)
    if b.dim() == 1:
        product = product.squeeze(-1)
    return product


def addmm(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """Compute ``beta * bias + alpha * mm(a, b)`` as aten::addmm does.

    ``bias`` broadcasts to the product, has its dtype, and is not read at beta 0.
    """
    _require_addend("addmm", bias, a)
    return _added(bias, mm(a, b), beta, alpha)


def baddbmm(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """Compute ``beta * bias + alpha * bmm(a, b)`` as aten::baddbmm does."""
    _require_addend("baddbmm", bias, a)
    return _added(bias, bmm(a, b), beta, alpha)


def addbmm(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """Add the products of a batch to ``bias`` as aten::addbmm does.

    Their sum is one product of two matrices, of the batch's rows and columns in a line.
    """
    _require_batches("addbmm", a, b)
    rows = a.transpose(0, 1).reshape(a.shape[1], a.shape[0] * a.shape[2])
    columns = b.reshape(b.shape[0] * b.shape[1], b.shape[2])
    return addmm(bias, rows, columns, beta=beta, alpha=alpha)


def mv(a: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Multiply a matrix and a vector as aten::mv does."""
    if vector.dim() != 1:
        raise RuntimeError(f"mv takes a vector, got a {vector.dim()}D tensor")
    return mm(a, vector.unsqueeze(1)).squeeze(1)


def addmv(
    bias: torch.Tensor,
    a: torch.Tensor,
    vector: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """Compute ``beta * bias + alpha * mv(a, vector)`` as aten::addmv does."""
    _require_addend("addmv", bias, a)
    return _added(bias, mv(a, vector), beta, alpha)


def mean(
    tensor: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Average over ``dim`` as aten::mean.dim does, over all axes if it is empty."""
    result_dtype = tensor.dtype if dtype is None else dtype
    if not result_dtype.is_floating_point or tensor.is_complex():
        raise RuntimeError(
            "mean takes a floating point input or a floating point dtype on the NPU, "
            f"got input {tensor.dtype} and dtype {dtype}"
        )
    flat, shape = _rows_over(tensor.to(result_dtype), dim, keepdim)
    if flat.numel() == 0:
        return flat.new_full(shape, math.nan)
    result: torch.Tensor = (
        torch.ops.batch_invariant_ops.npu_reduce_mean_batch_invariant(
            flat, -1, keepdim=True
        )
    )
    return result.reshape(shape).to(result_dtype)


def mean_all(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Average over all elements as aten::mean does.

    torch_npu has a kernel of its own for it, which does not go through aten::mean.dim.
    """
    return mean(tensor, dtype=dtype)


def sum_dim(
    tensor: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Add up over ``dim`` as aten::sum.dim_IntList does, over all axes if it is empty.

    What the extension's kernel does not take, such as integers, is added by halves: in
    an order that only a row's length decides, and exactly where nothing is rounded.
    """
    exact = not tensor.is_floating_point() and not tensor.is_complex()
    result_dtype = dtype or (torch.int64 if exact else tensor.dtype)
    flat, shape = _rows_over(tensor.to(result_dtype), dim, keepdim)
    if flat.numel() == 0:
        return flat.new_zeros(shape)
    if result_dtype not in _KERNEL_DTYPES:
        return _added_by_halves(flat).reshape(shape)
    result: torch.Tensor = torch.ops.batch_invariant_ops.npu_reduce_sum_batch_invariant(
        flat, -1, keepdim=True
    )
    return result.reshape(shape).to(result_dtype)


def sum_all(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Add up all elements as aten::sum does."""
    return sum_dim(tensor, dtype=dtype)


def log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Compute aten::_log_softmax; ``half_to_float`` gives a float32 result."""
    kernel = torch.ops.batch_invariant_ops.npu_log_softmax_batch_invariant
    return _normalised("log_softmax", kernel, tensor, dim, half_to_float)


def softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Compute aten::_softmax; ``half_to_float`` gives a float32 result."""
    kernel = torch.ops.batch_invariant_ops.npu_softmax_batch_invariant
    return _normalised("softmax", kernel, tensor, dim, half_to_float)


class _AddRmsNorm:
    """Stand for npu_add_rms_norm, whose fused kernel is not batch-invariant."""

    def __call__(
        self,
        x1: torch.Tensor,
        x2: torch.Tensor,
        gamma: torch.Tensor,
        epsilon: float = 1e-06,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the normalised sum, the reciprocal deviations and the sum."""
        total = x1 + x2
        normed, rstd = torch_npu.npu_rms_norm(total, gamma, epsilon)
        return normed, rstd, total

    @property
    def default(self) -> _AddRmsNorm:
        """Return the operator itself, which has one overload."""
        return self


add_rms_norm = _AddRmsNorm()


class _AttentionWithoutOut:
    """Stand for the fused attention of extension 1.0.0, which lacks ``.out``.

    The native operator has the overload, so its absence must be an error that explains
    itself and never the native kernel.
    """

    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the extension's operator with all arguments as they are."""
        if "out" in kwargs:
            self.out(*args, **kwargs)
        return self._operator(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def out(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error that names the version with this overload."""
        _raise_needs_version_2(f"{_ATTENTION}.out")


def _max_workspace_unavailable(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise the error that names the version with the workspace operator."""
    _raise_needs_version_2(_MAX_WORKSPACE)


def _raise_needs_version_2(name: str) -> NoReturn:
    raise RuntimeError(
        f"{name} is not batch-invariant with the installed batch_invariant_ops: "
        "version 2.0.0 of Ascend's extension has it, version 1.0.0 has not. Install "
        "2.0.0, or run without graph capture (--disable-cuda-graph)."
    )


def _aten_kernels(enable_bmm: bool) -> dict[str, Callable[..., torch.Tensor]]:
    kernels: dict[str, _Kernel] = {
        "mm": mm,
        "mm.out": _into(mm),
        "mm.dtype": _as_dtype(mm),
        "mm.dtype_out": _into(_as_dtype(mm)),
        "matmul": matmul,
        "matmul.out": _into(matmul),
        "addmm": addmm,
        "addmm.out": _into(addmm),
        "addmm.dtype": _as_dtype(addmm),
        "addmm.dtype_out": _into(_as_dtype(addmm)),
        "addmm_": _in_place(addmm),
        "addbmm": addbmm,
        "addbmm.out": _into(addbmm),
        "addbmm_": _in_place(addbmm),
        "mv": mv,
        "mv.out": _into(mv),
        "addmv": addmv,
        "addmv.out": _into(addmv),
        "addmv_": _in_place(addmv),
        "mean": mean_all,
        "mean.dtype_out": _into(mean_all),
        "mean.dim": mean,
        "mean.out": _into(mean),
        "_log_softmax": log_softmax,
        "_log_softmax.out": _into(log_softmax),
    }
    if enable_bmm:
        kernels |= {
            "bmm": bmm,
            "bmm.out": _into(bmm),
            "bmm.dtype": _as_dtype(bmm),
            "bmm.dtype_out": _into(_as_dtype(bmm)),
            "baddbmm": baddbmm,
            "baddbmm.out": _into(baddbmm),
            "baddbmm.dtype": _as_dtype(baddbmm),
            "baddbmm.dtype_out": _into(_as_dtype(baddbmm)),
            "baddbmm_": _in_place(baddbmm),
        }
    if _has_operator("npu_softmax_batch_invariant"):
        kernels |= {"_softmax": softmax, "_softmax.out": _into(softmax)}
    if _has_operator("npu_reduce_sum_batch_invariant"):
        kernels |= {
            "sum": sum_all,
            "sum.dim_IntList": sum_dim,
            "sum.out": _into_sum(sum_all),
            "sum.IntList_out": _into_sum(sum_dim),
        }
    return kernels


def _rebind_npu_operators() -> None:
    """Rebind what is called as an attribute, which no dispatch key reaches.

    torch_npu copies the attributes of torch.ops.npu when it is imported, so either
    namespace may be the one a caller uses.
    """
    attention = getattr(torch.ops.batch_invariant_ops, _EXTENSION_ATTENTION)
    if not _has_out_overload():
        attention = _AttentionWithoutOut(attention)
    max_workspace = getattr(
        torch.ops.batch_invariant_ops,
        _EXTENSION_MAX_WORKSPACE,
        _max_workspace_unavailable,
    )
    for namespace in (torch.ops.npu, torch_npu):
        _rebind(namespace, _ATTENTION, attention)
        _rebind(namespace, _MAX_WORKSPACE, max_workspace, if_present=True)
        _rebind(namespace, _ADD_RMS_NORM, add_rms_norm, if_present=True)


def _rebind(
    namespace: ModuleType, name: str, replacement: object, if_present: bool = False
) -> None:
    # Read before hasattr, which makes torch.ops cache the operator as an attribute.
    original = vars(namespace).get(name, _ABSENT)
    if if_present and not hasattr(namespace, name):
        return
    _state.originals.setdefault((namespace, name), original)
    setattr(namespace, name, replacement)


def _register_graph_handler() -> None:
    """Let graph capture record the replaced attention, once a process.

    torch_npu records by operator name the calls whose lengths a replay must renew. A
    name it has no handler for is captured with the lengths of the capture.
    """
    if _state.graph_handler_registered or not graph_capture_supported():
        return
    handler = type(
        "BatchInvariantAttentionHandler",
        (torch_npu.npu.NpuGraphOpHandler,),
        {
            "__module__": __name__,
            "prepare_capture": classmethod(_prepare_capture),
            "postprocess_result": classmethod(_result_of_capture),
        },
    )
    names = [f"{_EXTENSION_ATTENTION}.{overload}" for overload in ("default", "out")]
    torch_npu.npu.register_npu_graph_handler(names)(handler)
    _state.graph_handler_registered = True


def _prepare_capture(
    handler: type, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Turn a call into one of ``.out`` on buffers that outlive the capture."""
    extension = torch.ops.batch_invariant_ops
    out = getattr(extension, _EXTENSION_ATTENTION).out
    if operator is out:
        return operator, args, kwargs
    infer_output = getattr(extension, _EXTENSION_INFER_OUTPUT).default
    accepted = {argument.name for argument in infer_output._schema.arguments}
    query, _, value = args
    buffers = infer_output(
        query, value, **{name: kwargs[name] for name in kwargs if name in accepted}
    )
    workspace = getattr(extension, _EXTENSION_MAX_WORKSPACE)(*args, **kwargs)
    return out, args, {**kwargs, "workspace": workspace, "out": list(buffers)}


def _result_of_capture(handler: type, result: Any, kwargs: dict[str, Any]) -> Any:
    """Return the buffers that every replay writes to."""
    return tuple(kwargs["out"])


def _require_extension() -> None:
    cause = _load_extension()
    missing = [name for name in _REQUIRED_OPERATORS if not _has_operator(name)]
    if not missing:
        return
    raise RuntimeError(
        "Deterministic inference on an NPU needs Ascend's batch-invariant operators, "
        f"and torch.ops.batch_invariant_ops lacks {', '.join(missing)}. Importing "
        "batch_invariant_ops is no proof: a package of Thinking Machines has the same "
        "import name and registers none of them; uninstall it if it is there. Ascend's "
        "comes in two parts: the AscendC operator package for the chip (A2: 910b, A3: "
        "910_93) and the PyTorch extension, which is built from source. Neither is on "
        "PyPI."
    ) from cause


def _load_extension() -> Exception | None:
    """Import the extension unless its operators are there; return what went wrong."""
    if all(_has_operator(name) for name in _REQUIRED_OPERATORS):
        return None
    try:
        importlib.import_module("batch_invariant_ops")
    except Exception as error:  # noqa: BLE001
        # Another package of this name may raise anything; the operators decide.
        return error
    return None


def _is_in_aten(name: str) -> bool:
    """Return whether this torch has an overload."""
    packet, _, overload = name.partition(".")
    return hasattr(getattr(torch.ops.aten, packet, None), overload or "default")


def _has_operator(name: str) -> bool:
    return hasattr(torch.ops.batch_invariant_ops, name)


def _has_out_overload() -> bool:
    return _has_operator(_EXTENSION_ATTENTION) and hasattr(
        getattr(torch.ops.batch_invariant_ops, _EXTENSION_ATTENTION), "out"
    )


def _product(
    name: str, a: torch.Tensor, b: torch.Tensor, kernel: Callable[..., Any]
) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2:
        raise RuntimeError(
            f"{name} takes matrices, got {a.dim()}D and {b.dim()}D tensors"
        )
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]})"
        )
    _require_products(name, a, b)
    if a.numel() == 0 or b.numel() == 0:
        return a.new_zeros((a.shape[0], b.shape[1]))
    result: torch.Tensor = kernel(a.contiguous(), b.contiguous())
    return result


def _require_products(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"{name} takes tensors of one dtype, got {a.dtype} and {b.dtype}"
        )
    if not a.is_floating_point():
        raise RuntimeError(
            f"{name} takes floating point tensors in batch-invariant mode on the NPU, "
            f"got {a.dtype}"
        )


def _require_batches(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 3 or b.dim() != 3:
        raise RuntimeError(f"{name} takes 3D tensors, got {a.dim()}D and {b.dim()}D")
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise RuntimeError(
            f"{name} cannot multiply shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )


def _require_addend(name: str, bias: torch.Tensor, a: torch.Tensor) -> None:
    if bias.dtype != a.dtype:
        raise RuntimeError(
            f"{name} takes tensors of one dtype, got {bias.dtype} and {a.dtype}"
        )


def _added(
    bias: torch.Tensor, product: torch.Tensor, beta: complex, alpha: complex
) -> torch.Tensor:
    addend = bias.expand(product.shape)
    if alpha != 1:
        product = product * alpha
    # The product comes first, because the result has the strides of the first operand.
    return product if beta == 0 else torch.add(product, addend, alpha=beta)


def _into(kernel: _Kernel) -> _Kernel:
    """Return the overload that writes its result to ``out``."""

    def overload(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return _written(out, kernel(*args, **kwargs))

    return overload


def _into_sum(kernel: _Kernel) -> _Kernel:
    """Return the overload that adds up to ``out``, in its dtype unless one is given."""

    def overload(
        *args: Any, out: torch.Tensor, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> torch.Tensor:
        return _written(out, kernel(*args, dtype=dtype or out.dtype, **kwargs))

    return overload


def _in_place(kernel: _Kernel) -> _Kernel:
    """Return the overload that writes its result to its first operand."""

    def overload(first: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return first.copy_(kernel(first, *args, **kwargs))

    return overload


def _as_dtype(kernel: _Kernel) -> _Kernel:
    """Return the overload whose last positional argument is the dtype of the result."""

    def overload(*args: Any, **kwargs: Any) -> torch.Tensor:
        *operands, dtype = args
        return kernel(*(operand.to(dtype) for operand in operands), **kwargs)

    return overload


def _as_batch(tensor: torch.Tensor, batch: torch.Size) -> torch.Tensor:
    matrix = tensor.shape[-2:]
    return tensor.expand(*batch, *matrix).reshape(math.prod(batch), *matrix)


def _normalised(
    name: str,
    kernel: Callable[..., torch.Tensor],
    tensor: torch.Tensor,
    dim: int,
    half_to_float: bool,
) -> torch.Tensor:
    """Apply a kernel for the last axis along any axis."""
    if half_to_float:
        if tensor.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError(
                f"{name} converts half precision input to float32 only, "
                f"got {tensor.dtype}"
            )
        tensor = tensor.float()
    if not tensor.is_floating_point():
        raise RuntimeError(f"{name} takes a floating point input, got {tensor.dtype}")
    (axis,) = _axes([dim], tensor.dim()) or (0,)
    if tensor.numel() == 0:
        return tensor.new_empty(tensor.shape)
    last = tensor.reshape(1) if tensor.dim() == 0 else tensor.movedim(axis, -1)
    result = kernel(last.reshape(-1, last.shape[-1]).contiguous(), dim=-1)
    # Callers view what aten returns, so a moved axis must not show in the strides.
    return (
        result.reshape(last.shape).movedim(-1, axis).reshape(tensor.shape).contiguous()
    )


def _rows_over(
    tensor: torch.Tensor, dim: Sequence[int] | None, keepdim: bool
) -> tuple[torch.Tensor, list[int]]:
    """Return a matrix whose rows are to be reduced, and the shape of the result."""
    axes = _axes(dim, tensor.dim())
    kept = [axis for axis in range(tensor.dim()) if axis not in axes]
    rows = math.prod(tensor.shape[axis] for axis in kept)
    length = math.prod(tensor.shape[axis] for axis in axes)
    shape = [
        1 if axis in axes else size
        for axis, size in enumerate(tensor.shape)
        if keepdim or axis not in axes
    ]
    flat = tensor.permute([*kept, *axes]).reshape(rows, length)
    return flat.contiguous(), shape


def _added_by_halves(rows: torch.Tensor) -> torch.Tensor:
    while rows.shape[1] > 1:
        half = (rows.shape[1] + 1) // 2
        added = rows[:, : rows.shape[1] - half] + rows[:, half:]
        rows = torch.cat([added, rows[:, added.shape[1] : half]], dim=1)
    return rows


def _written(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Put a result into the buffer that a caller gave, as aten resizes it."""
    if out.dtype != result.dtype:
        raise RuntimeError(
            f"Expected out tensor to have dtype {result.dtype}, got {out.dtype}"
        )
    out.resize_(result.shape)
    return out.copy_(result)


def _axes(dim: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the axes in ``dim``, non-negative; none for a tensor without axes."""
    bound = max(rank, 1)
    axes: list[int] = []
    for axis in dim or range(rank):
        if not -bound <= axis < bound:
            raise IndexError(
                "Dimension out of range (expected to be in range of "
                f"[{-bound}, {bound - 1}], but got {axis})"
            )
        if axis % bound in axes:
            raise RuntimeError(
                f"dim {axis % bound} appears multiple times in the list of dims"
            )
        axes.append(axis % bound)
    return tuple(axes) if rank else ()
