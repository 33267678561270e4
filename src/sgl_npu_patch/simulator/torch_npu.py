"""Fake torch_npu: operators with the schemas of a real wheel, and graph capture.

As in the real one, `torch_npu.<operator>` is a copy of `torch.ops.npu.<operator>` made when it is
imported, so that rebinding one leaves the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sgl_npu_patch.simulator import schemas
from sgl_npu_patch.simulator.attention import attend
from sgl_npu_patch.simulator.device import cpu, in_last_bits, npu, tell
from sgl_npu_patch.simulator.uncovered import by_cut

NAMESPACE = "npu"
ATTENTION = "npu_fused_infer_attention_score"
LARGEST_TOP_K = 1024

handlers: dict[str, type] = {}
"""What was registered with `torch_npu.npu.register_npu_graph_handler`, by operator name."""

native_calls: list[str] = []
"""The operators of this namespace that ran, oldest first; clear it at will."""

_libraries: list[Any] = []
_new_library: Callable[[str, str], Any] = torch.library.Library


def install(version: str = schemas.DEFAULT, **operators: Callable[..., Any]) -> ModuleType:
    """Register the operators of a version, in place of an earlier one's, and return `torch_npu`.

    The module is put into `sys.modules`. `operators` adds to the ones below, or replaces them,
    under the version's own schema; they get npu tensors. A version before 2.10 has no graph
    handlers.
    """
    uninstall()
    found = schemas.of(version)
    library = _new_library(NAMESPACE, "DEF")
    _libraries.append(library)
    for name, kernel in {**NATIVE_KERNELS, **operators}.items():
        schema = found[name.replace("__", ".")]
        library.define(schema)
        library.impl(schema.partition("(")[0], _counted(name, kernel), "PrivateUse1")
    module: Any = ModuleType("torch_npu")
    module.__version__ = version
    module.npu = ModuleType("torch_npu.npu")
    if schemas.has_graph_handlers(version):
        module.npu.NpuGraphOpHandler = GraphHandler
        module.npu.register_npu_graph_handler = _register
    for name in {**NATIVE_KERNELS, **operators}:
        packet = name.partition("__")[0]
        setattr(module, packet, getattr(torch.ops.npu, packet))
    sys.modules["torch_npu"] = module
    result: ModuleType = module
    return result


def uninstall() -> None:
    """Take the operators, the handlers and the module out of the process again."""
    for library in _libraries:
        library._destroy()
    _libraries.clear()
    for name in [*NATIVE_KERNELS, *vars(torch.ops.npu)]:
        if name in vars(torch.ops.npu) and name.lstrip("_").startswith("npu_"):
            delattr(torch.ops.npu, name)
    handlers.clear()
    native_calls.clear()
    sys.modules.pop("torch_npu", None)


class GraphHandler:
    """torch_npu.npu.NpuGraphOpHandler: what capture asks about an operator."""

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        return result

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: dict[str, Any]) -> None:
        pass


class Record(NamedTuple):
    """One captured call that a replay renews."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Graph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Capture as torch_npu does: record calls that have a handler, replay them with new lengths.

    Enter it to capture. Only what has a handler is renewed; anything else is as it was at capture.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: list[Record] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler: Any = handlers.get(func.__name__)
        kwargs = kwargs or {}
        if handler is None:
            return func(*args, **kwargs)
        operator, args, kwargs = handler.prepare_capture(func, args, kwargs)
        result = operator(*args, **kwargs)
        self.records.append(Record(operator, args, kwargs))
        return handler.postprocess_result(result, kwargs)

    def replay(self, **update: Any) -> None:
        """Run the recorded calls again into their buffers, keywords that they had replaced."""
        for operator, args, kwargs in self.records:
            renewed = {name: update.get(name, given) for name, given in kwargs.items()}
            record = SimpleNamespace(op_cache_entry=operator, args=list(args), kwargs=renewed)
            handler: Any = handlers[operator.__name__]
            handler.update_args(record, update)
            operator(*record.args, **record.kwargs)


def _register(names: str | list[str]) -> Callable[[type], type]:
    def decorate(handler: type) -> type:
        for name in [names] if isinstance(names, str) else names:
            handlers[name] = handler
        return handler

    return decorate


def _counted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any, **kwargs: Any) -> Any:
        native_calls.append(name.replace("__", "."))
        result = kernel(*args, **kwargs)
        tell(f"{NAMESPACE}::{name}", args, kwargs, result)
        return result

    return count


def _rms_norm(
    tensor: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, rstd = _normed(cpu(tensor), cpu(gamma), epsilon)
    return npu(normed), npu(rstd)


def _add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = cpu(x1) + cpu(x2)
    normed, rstd = _normed(total, cpu(gamma), epsilon)
    rows = total.numel() // gamma.numel()
    return npu(in_last_bits(normed, rows)), npu(in_last_bits(rstd, rows)), npu(total)


def _normed(
    host: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise over the axes of `gamma`, row by row."""
    rows = host.reshape(-1, gamma.numel()).double()
    rstd = (_sums(rows.square()) / gamma.numel() + epsilon).rsqrt()
    normed = rows * rstd[:, None] * gamma.reshape(1, -1).double()
    lead = host.shape[: host.dim() - gamma.dim()]
    return (
        normed.reshape(host.shape).to(host.dtype),
        rstd.reshape(*lead, *([1] * gamma.dim())).float(),
    )


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Add up each row by additions of elements, in which no other row can show."""
    while rows.shape[1] > 1:
        half = (rows.shape[1] + 1) // 2
        added = rows[:, : rows.shape[1] - half] + rows[:, half:]
        rows = torch.cat([added, rows[:, added.shape[1] : half]], 1)
    return rows[:, 0]


def _attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    bits = partial(by_cut, ATTENTION)
    attended, lse, sequences = attend(*map(cpu, args), bits=bits, **schemas.on_host(kwargs))
    return npu(in_last_bits(attended, sequences)), npu(in_last_bits(lse, sequences))


def _attention_out(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = kwargs.pop("out")
    for buffer, result in zip(out, _attention(*args, **kwargs), strict=True):
        cpu(buffer).copy_(cpu(result))
    return out[0], out[1]


def _gemma_rms_norm(
    tensor: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, rstd = _normed(cpu(tensor), 1 + cpu(gamma), epsilon)
    rows = tensor.numel() // gamma.numel()
    return npu(in_last_bits(normed, rows)), npu(in_last_bits(rstd, rows))


def _paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
) -> None:
    ones = torch.ones_like(context_lens)
    _flash_attention_qlens(
        query, key_cache, value_cache, block_table, query, ones, context_lens, num_kv_heads,
        num_heads, scale_value, out,
    )  # fmt: skip


def _flash_attention_qlens(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    context_lens: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """Attend causally, whatever the mask; both lengths are CPU tensors."""
    tokens = query.shape[0]
    attended, _, sequences = attend(
        cpu(query).reshape(tokens, num_heads, -1),
        cpu(key_cache),
        cpu(value_cache),
        num_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        scale=scale_value,
        input_layout="TND",
        actual_seq_lengths=seq_len.cumsum(0).tolist(),
        actual_seq_lengths_kv=context_lens.tolist(),
        block_table=cpu(block_table),
        sparse_mode=3,
    )
    cpu(out).copy_(in_last_bits(attended, sequences).reshape(out.shape))


def _max_workspace(*args: Any, **kwargs: Any) -> torch.Tensor:
    return npu(torch.zeros(1024, dtype=torch.uint8))


def top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Filter CPU tensors as npu_top_k_top_p documents it.

    Top-k keeps what reaches the k-th largest value. Top-p then works on the softmax of what is
    kept, summed from the smallest: it drops while the sum is at most 1 - p, and never the largest.
    So its nucleus differs from the one that SGLang takes from sorted probabilities.
    """
    if p is None and k is None:
        raise RuntimeError("npu_top_k_top_p takes p, k or both")
    if logits.dim() != 2 or logits.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(f"npu_top_k_top_p of {logits.dim()}D {logits.dtype}")
    _check_thresholds("p", p, logits, logits.dtype)
    _check_thresholds("k", k, logits, torch.int32)
    values, indices = logits.sort(dim=-1, stable=True)
    if k is not None:
        largest = min(LARGEST_TOP_K, logits.shape[1])
        if not bool(((k >= 1) & (k <= largest)).all()):
            raise RuntimeError(f"npu_top_k_top_p takes k from 1 to {largest}, got {k.tolist()}")
        least = values.gather(1, (logits.shape[1] - k.long()).unsqueeze(1))
        values = values.masked_fill(values < least, -torch.inf)
    if p is not None:
        mass = values.float().softmax(-1).cumsum(-1)
        dropped = mass <= 1 - p.float().unsqueeze(1)
        dropped[:, -1:] = False
        values = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(1, indices, values)


def _top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    return npu(
        top_k_top_p(cpu(logits), None if p is None else cpu(p), None if k is None else cpu(k))
    )


def _check_thresholds(
    name: str, given: torch.Tensor | None, logits: torch.Tensor, dtype: torch.dtype
) -> None:
    if given is None:
        return
    if given.dtype != dtype:
        raise RuntimeError(f"npu_top_k_top_p takes {name} as {dtype}, got {given.dtype}")
    if given.shape != logits.shape[:1]:
        raise RuntimeError(f"npu_top_k_top_p takes one {name} a row, got {tuple(given.shape)}")


NATIVE_KERNELS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": _rms_norm,
    "npu_add_rms_norm": _add_rms_norm,
    ATTENTION: _attention,
    "npu_fused_infer_attention_score__out": _attention_out,
    "_npu_fused_infer_attention_score_get_max_workspace": _max_workspace,
    "npu_top_k_top_p": _top_k_top_p,
}
"""torch_npu's operators, a double underscore before the overload. All but npu_rms_norm and
npu_top_k_top_p, which work row by row, depend in the last bits on the size of the batch."""

LAYER_KERNELS: dict[str, Callable[..., Any]] = {
    "npu_gemma_rms_norm": _gemma_rms_norm,
    "_npu_flash_attention_qlens": _flash_attention_qlens,
    "_npu_paged_attention": _paged_attention,
}
"""Operators of SGLang's layers that nothing replaces, to be installed beside the others."""

ROW_BY_ROW = frozenset({"npu_rms_norm", "npu_top_k_top_p"})
"""Operators of torch_npu that work row by row, so that no batch shows in their bits."""
