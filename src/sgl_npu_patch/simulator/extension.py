"""Stand in for Ascend's extension: `torch.ops.batch_invariant_ops`, version 1.0.0 or 2.0.0.

Every operator computes row by row, so that a row's bits do not depend on its neighbours, and
refuses what the real kernels are not known to take: anything but contiguous, non-empty npu tensors
of one of three floating types, reductions over another axis than the last, other ranks than the
kernel's. Code that is not ours to narrow down is judged by stand-ins that take strided tensors, any
axis and any rank: no release can be called broken by a limit that is only assumed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch

from sgl_npu_patch.simulator import schemas
from sgl_npu_patch.simulator.attention import attend
from sgl_npu_patch.simulator.device import NPU, cpu, npu, tell
from sgl_npu_patch.simulator.uncovered import by_cut

Version = Literal["1.0.0", "2.0.0"]

NAMESPACE = "batch_invariant_ops"
ATTENTION = "npu_fused_infer_attention_score_batch_invariant"

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_new_library: Callable[[str, str], Any] = torch.library.Library


class Call(NamedTuple):
    """One call of an operator of the extension."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


calls: list[Call] = []
"""Every call since `install`, oldest first; clear it at will."""

_libraries: list[Any] = []


def install(
    version: Version = "2.0.0", torch_npu_version: str = schemas.DEFAULT, *, narrow: bool = True
) -> ModuleType:
    """Register a version's operators instead of an earlier one's; return `batch_invariant_ops`.

    The module is put into `sys.modules`. The fused attention has the schema of that torch_npu's
    own. Unless `narrow`, what the real kernels might take is taken.
    """
    uninstall()
    library = _new_library(NAMESPACE, "DEF")
    _libraries.append(library)
    for name, (schema, kernel) in _operators(version, schemas.of(torch_npu_version)).items():
        library.define(schema)
        wider = kernel if narrow else _WIDER.get(name, _same)(kernel)
        library.impl(name, _recorded(name, wider), "PrivateUse1")
    module = ModuleType(NAMESPACE)
    module.__dict__["__version__"] = version
    sys.modules[NAMESPACE] = module
    return module


def uninstall() -> None:
    """Take the operators out of the process again."""
    for library in _libraries:
        library._destroy()
    _libraries.clear()
    calls.clear()
    sys.modules.pop(NAMESPACE, None)


def called(operator: str) -> list[Call]:
    """Return the calls of one operator, by its name or by name and overload."""
    return [call for call in calls if call.operator in (operator, f"{operator}.default")]


def _operators(
    version: Version, native: dict[str, str]
) -> dict[str, tuple[str, Callable[..., Any]]]:
    attention = native["npu_fused_infer_attention_score"]
    found: dict[str, tuple[str, Callable[..., Any]]] = {
        "npu_mm_batch_invariant": ("(Tensor a, Tensor b) -> Tensor", _mm),
        "npu_matmul_batch_invariant": ("(Tensor a, Tensor b) -> Tensor", _matmul),
        "npu_reduce_mean_batch_invariant": (
            "(Tensor input, int dim, bool keepdim=False) -> Tensor",
            _reduce(torch.mean),
        ),
        "npu_reduce_sum_batch_invariant": (
            "(Tensor input, int dim, bool keepdim=False) -> Tensor",
            _reduce(torch.sum),
        ),
        "npu_log_softmax_batch_invariant": (
            "(Tensor input, int dim) -> Tensor",
            _rows(torch.log_softmax),
        ),
        "npu_softmax_batch_invariant": ("(Tensor input, int dim) -> Tensor", _rows(torch.softmax)),
        ATTENTION: (attention[attention.index("(") :], _attention),
    }
    if version == "2.0.0":
        for suffix, kernel in (
            (".out", _attention_out),
            ("_get_max_workspace", _max_workspace),
            ("_infer_output", _infer_output),
        ):
            prefix = "_" if suffix.startswith("_") else ""
            schema = native[f"{prefix}npu_fused_infer_attention_score{suffix}"]
            found[f"{prefix}{ATTENTION}{suffix}"] = (schema[schema.index("(") :], kernel)
    return {name: (name + schema, kernel) for name, (schema, kernel) in found.items()}


def _recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def record(*args: Any, **kwargs: Any) -> Any:
        calls.append(Call(name, args, kwargs))
        result = kernel(*args, **kwargs)
        tell(f"{NAMESPACE}::{name}", args, kwargs, result)
        return result

    return record


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    left, right = _admit("mm", 2, a, b)
    _require(left.shape[1] == right.shape[0], f"mm of {left.shape} and {right.shape}")
    return npu(_product(left, right))


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rank = a.dim()
    _require(rank in (2, 3), f"matmul of a {rank}D tensor")
    left, right = _admit("matmul", rank, a, b)
    if rank == 2:
        _require(left.shape[1] == right.shape[0], f"matmul of {left.shape} and {right.shape}")
        return npu(_product(left, right))
    _require(
        left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1],
        f"matmul of {left.shape} and {right.shape}",
    )
    return npu(torch.stack([_product(x, y) for x, y in zip(left, right, strict=True)]))


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    wide = right.double()
    rows = [row[None].clone() @ wide for row in left.double()]
    return torch.cat(rows).to(left.dtype)


def _reduce(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(tensor: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
        (host,) = _admit("a reduction", tensor.dim(), tensor)
        _require(dim in (-1, tensor.dim() - 1), f"reducing axis {dim} of {tensor.dim()}")
        rows = [function(row.double().clone()) for row in host.reshape(-1, host.shape[-1])]
        shape = (*host.shape[:-1], 1) if keepdim else host.shape[:-1]
        return npu(torch.stack(rows).reshape(shape).to(host.dtype))

    return reduce


def _rows(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def each(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        (host,) = _admit("softmax", tensor.dim(), tensor)
        _require(dim in (-1, tensor.dim() - 1), f"softmax over axis {dim} of {tensor.dim()}")
        rows = [function(row.double().clone(), -1) for row in host.reshape(-1, host.shape[-1])]
        return npu(torch.stack(rows).reshape(host.shape).to(host.dtype))

    return each


def _same(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _of_any_rank(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if b.dim() == 2:
            rows = a.reshape(-1, a.shape[-1]).contiguous()
            return kernel(rows, b.contiguous()).reshape(*a.shape[:-1], b.shape[-1])
        batch = [max(pair) for pair in zip(a.shape[:-2], b.shape[:-2], strict=True)]
        left, right = (
            t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]).contiguous() for t in (a, b)
        )
        return kernel(left, right).reshape(*batch, a.shape[-2], b.shape[-1])

    return product


def _over_any_axis(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(tensor: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
        result = kernel(tensor.movedim(dim, -1).contiguous(), -1, True).movedim(-1, dim)
        return (result if keepdim else result.squeeze(dim)).contiguous()

    return reduce


def _along_any_axis(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def each(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        result = kernel(tensor.movedim(dim, -1).contiguous(), -1)
        return result.movedim(-1, dim).contiguous()

    return each


_WIDER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "npu_mm_batch_invariant": _of_any_rank,
    "npu_matmul_batch_invariant": _of_any_rank,
    "npu_reduce_mean_batch_invariant": _over_any_axis,
    "npu_reduce_sum_batch_invariant": _over_any_axis,
    "npu_log_softmax_batch_invariant": _along_any_axis,
    "npu_softmax_batch_invariant": _along_any_axis,
}


def _attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    bits = partial(by_cut, ATTENTION)
    attended, lse, _ = attend(*map(cpu, args), bits=bits, **schemas.on_host(kwargs))
    return npu(attended), npu(lse)


def _attention_out(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = kwargs["out"]
    _require(kwargs.get("workspace") is not None, "attention.out without a workspace")
    results = attend(*map(cpu, args), **schemas.on_host(kwargs))[:2]
    for buffer, result in zip(out, results, strict=True):
        _require(buffer.shape == result.shape, f"a buffer of {buffer.shape} for {result.shape}")
        cpu(buffer).copy_(result)
    return out[0], out[1]


def _max_workspace(*args: Any, **kwargs: Any) -> torch.Tensor:
    return npu(torch.zeros(1024, dtype=torch.uint8))


def _infer_output(
    query: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if kwargs.get("softmax_lse_flag"):
        raise NotImplementedError("the simulated extension infers no log-sum-exp")
    return npu(torch.zeros(query.shape, dtype=query.dtype)), npu(torch.empty(0))


def _admit(operator: str, rank: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
    for tensor in tensors:
        _require(tensor.device.type == NPU, f"{operator} on {tensor.device}")
        _require(tensor.dtype in _FLOATS, f"{operator} of {tensor.dtype}")
        _require(tensor.dtype == tensors[0].dtype, f"{operator} of different types")
        _require(tensor.dim() == rank > 0, f"{operator} of a {tensor.dim()}D tensor")
        _require(tensor.is_contiguous(), f"{operator} of a tensor with strides {tensor.stride()}")
        _require(tensor.numel() > 0, f"{operator} of an empty tensor")
    return [cpu(tensor) for tensor in tensors]


def _require(condition: bool, refused: str) -> None:
    if not condition:
        raise RuntimeError(f"the batch-invariant kernels do not take {refused}")
