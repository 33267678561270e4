"""Hold the operations by which the mode is judged, and what is demanded of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from sgl_npu_patch.simulator import extension, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.behaviour.machine import (
    ADD_RMS_NORM,
    ATTENTION,
    WORKSPACE,
    WORKSPACE_OF_EXTENSION,
    Machine,
)

ROWS = 3
CONTEXTS: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    torch.no_grad,
    torch.inference_mode,
)
"""What SGLang serves under: the first by default, the second by choice."""

PRODUCTS = frozenset({"npu_mm_batch_invariant", "npu_matmul_batch_invariant"})
MEAN = frozenset({"npu_reduce_mean_batch_invariant"})
LOG_SOFTMAX = frozenset({"npu_log_softmax_batch_invariant"})
SOFTMAX = frozenset({"npu_softmax_batch_invariant"})
SUM = frozenset({"npu_reduce_sum_batch_invariant"})
BATCH_INVARIANT_ATTENTION = frozenset({f"{ATTENTION}_batch_invariant"})

HALF = torch.bfloat16


@dataclass(frozen=True)
class Operation:
    """A call whose result has one row for each row of the input.

    `reaches` are the extension's operators that may do it, none if operators of torch_npu do it
    that are batch-invariant by themselves.
    """

    code: str
    call: Callable[[Machine, torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    reaches: frozenset[str]
    dtype: torch.dtype = torch.float32

    def batch(self) -> torch.Tensor:
        """Return an input of some rows."""
        return npu(random((ROWS, *self.shape), 1, self.dtype))


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a CPU tensor that is the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an npu tensor that is the same for the same shape."""
    return npu(random(shape, len(shape) + sum(shape), dtype))


def parameter(*shape: int) -> torch.Tensor:
    """Return a weight as a module holds it: it asks for gradients, whatever the mode."""
    return weight(*shape).requires_grad_()


def difference(on: Machine, operation: Operation) -> str:
    """Say by what a result depends on its batch; empty if it does not, and is the replacement's."""
    extension.calls.clear()
    torch_npu.native_calls.clear()
    batch = operation.batch()
    together = cpu(operation.call(on, batch)).clone()
    reached = {call.operator.partition(".")[0] for call in extension.calls}
    native = {*torch_npu.native_calls} & {ATTENTION, f"{ATTENTION}.out", ADD_RMS_NORM}
    if native:
        return f"the original {min(native)} is called"
    if operation.reaches and not operation.reaches & reached:
        return "no operator of batch_invariant_ops is called"
    if operation.reaches and not reached <= operation.reaches | {WORKSPACE_OF_EXTENSION}:
        return f"{', '.join(sorted(reached))} is called"
    rows = [cpu(operation.call(on, batch[i : i + 1])) for i in range(ROWS)]
    for index, row in enumerate(rows):
        if not torch.equal(row, together[index : index + 1]):
            return f"row {index} alone differs in its bits from the same row among {ROWS}"
    return ""


def require_invariant(on: Machine, operations: Mapping[str, Operation]) -> None:
    """Raise Failed for the first operation that depends on its batch, under either mode."""
    for name, operation in operations.items():
        for context in CONTEXTS:
            with context():
                found = difference(on, operation)
            if found:
                raise Failed(
                    f"{name} under {context.__name__}: {found}",
                    expected="each row as if it were alone, by Ascend's batch-invariant operators",
                    found=found,
                    code=operation.code,
                )


def invariant(on: Machine, operations: Mapping[str, Operation]) -> frozenset[str]:
    """Name the operations that do not depend on their batch now."""
    found = set()
    with torch.no_grad():
        for name, operation in operations.items():
            # An operation that fails is not batch-invariant either.
            with suppress(Exception):
                if not difference(on, operation):
                    found.add(name)
    return frozenset(found)


def mm(*shape: int, dtype: torch.dtype = torch.float32) -> Operation:
    return Operation(
        "torch.mm(x, w)",
        lambda on, x: torch.mm(x, weight(*shape, dtype=dtype)),
        shape[:1],
        PRODUCTS,
        dtype,
    )


def linear(*shape: int, bias: bool) -> Operation:
    return Operation(
        f"functional.linear(x, weight, {'bias' if bias else 'None'})",
        lambda on, x: functional.linear(x, parameter(8, 16), parameter(8) if bias else None),
        shape,
        PRODUCTS,
    )


def matmul(*shape: int) -> Operation:
    return Operation("x @ w", lambda on, x: x @ weight(16, 8), shape, PRODUCTS)


def mean(code: str, *shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Operation:
    return Operation(code, lambda on, x: torch.mean(x, **options), shape, MEAN, dtype)


def log_softmax(
    code: str, *shape: int, dtype: torch.dtype = torch.float32, **options: Any
) -> Operation:
    return Operation(code, lambda on, x: torch.log_softmax(x, **options), shape, LOG_SOFTMAX, dtype)


def attention_arguments(x: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Lay out as SGLang's decode does: one query token over a request's keys, 2 heads of 8."""
    query, key, value = x[:, :1], x[:, 1:5], x[:, 5:9]
    options = {
        "num_heads": 2,
        "input_layout": "BSH",
        "scale": 0.25,
        "actual_seq_lengths_kv": [4] * x.shape[0],
    }
    return (query.contiguous(), key.contiguous(), value.contiguous()), options


def attention(namespace: str, overload: str = "") -> Operation:
    def call(on: Machine, x: torch.Tensor) -> torch.Tensor:
        owner = on.namespaces()[namespace]
        operator = getattr(owner, ATTENTION)
        arguments, options = attention_arguments(x)
        if overload != "out":
            chosen = getattr(operator, overload) if overload else operator
            result: torch.Tensor = chosen(*arguments, **options)[0]
            return result
        workspace = getattr(owner, WORKSPACE)(*arguments, **options)
        buffers = [torch.empty_like(arguments[0]), npu(torch.empty(0))]
        operator.out(*arguments, **options, workspace=workspace, out=buffers)
        return buffers[0]

    code = ".".join(filter(None, (namespace, ATTENTION, overload)))
    return Operation(f"{code}(query, key, value, ...)", call, (9, 16), BATCH_INVARIANT_ATTENTION)


def add_rms_norm(namespace: str, output: int, *shape: int) -> Operation:
    def call(on: Machine, x: torch.Tensor) -> torch.Tensor:
        operator = getattr(on.namespaces()[namespace], ADD_RMS_NORM)
        result: torch.Tensor = operator(x, x * 0.5, weight(16), 1e-5)[output]
        return result

    code = f"{namespace}.{ADD_RMS_NORM}(x, residual, gamma, 1e-5)[{output}]"
    return Operation(code, call, shape, frozenset())


MM = {"torch.mm": mm(16, 8), "torch.mm of bfloat16": mm(16, 8, dtype=HALF)}
MATMUL = {
    "torch.matmul": matmul(16),
    "a linear layer": linear(16, bias=False),
    "a linear layer over sequences": linear(3, 16, bias=False),
}
ADDMM = {
    "a linear layer with bias": linear(16, bias=True),
    "a linear layer with bias over sequences": linear(3, 16, bias=True),
}
BMM = {
    "torch.bmm": Operation(
        "torch.bmm(x, w)",
        lambda on, x: torch.bmm(x, weight(1, 16, 8).expand(x.shape[0], 16, 8).contiguous()),
        (3, 16),
        PRODUCTS,
    )
}
MEANS = {"the mean over the last axis": mean("x.mean(-1)", 16, dim=-1)}
LOG_SOFTMAXES = {
    "log-softmax over the last axis": log_softmax("torch.log_softmax(x, -1)", 16, dim=-1)
}
SOFTMAXES = {
    "softmax over the last axis": Operation(
        "torch.softmax(x, -1)", lambda on, x: torch.softmax(x, -1), (16,), SOFTMAX
    )
}
SUMS = {
    "the sum over the last axis": Operation("x.sum(-1)", lambda on, x: x.sum(-1), (16,), SUM),
    "the sum over two axes": Operation(
        "x.sum((1, -1))", lambda on, x: x.sum((1, -1)), (3, 16), SUM
    ),
}
NORMS = {
    "the normed sum": add_rms_norm("torch_npu", 0, 16),
    "the normed sum over sequences": add_rms_norm("torch_npu", 0, 3, 16),
}

ATEN = {"mm": mm(16, 8), "addmm": linear(16, bias=True), "bmm": BMM["torch.bmm"]} | {
    "mean.dim": mean("x.mean(-1)", 16, dim=-1),
    "_log_softmax": log_softmax("torch.log_softmax(x, -1)", 16, dim=-1),
}
PROBES = ATEN | {
    f"torch.ops.npu.{ATTENTION}": attention("torch.ops.npu"),
    f"torch_npu.{ATTENTION}": attention("torch_npu"),
    f"torch_npu.{ADD_RMS_NORM}": add_rms_norm("torch_npu", 0, 16),
}
"""One operation of each kind, by which the mode is seen to be on or off."""
