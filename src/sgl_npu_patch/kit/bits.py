"""Compare, bit by bit, one row alone with the same row in batches of several sizes.

For every operator that npu_ops replaces, in every type that it takes, with the mode off and on.
All inputs are made on the CPU from fixed seeds, so that two machines compare the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .facts import ADD_RMS_NORM, ATTENTION, Mode, brief

SIZES = (1, 2, 3, 8, 17, 64, 200)
WIDTH = 4096
FLOATS = ("float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
"""What Ascend's fused attention takes."""

_HEADS, _KV_HEADS, _HEAD = 8, 2, 128
_PAGE = 128
_PAGES = 3
"""How many pages of the cache a request has at most."""
_TOKENS = 5
"""How many new tokens a request brings in prefill."""
_MASK = 2048
"""The side of the mask that the fused attention takes for sparse_mode 3."""
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}

Batch = Callable[[Sequence[int]], torch.Tensor]
"""Computes some rows, by their numbers, in one batch; the first axis of the result is the row."""


@dataclass(frozen=True)
class Operation:
    """A call that takes a batch of rows.

    Attributes:
        operator: what is replaced.
        form: the call, as SGLang makes it.
        dtypes: the types that the device's operator takes.
        prepare: makes the inputs of a type for rows of a width; gives the batch.
    """

    operator: str
    form: str
    dtypes: Sequence[str]
    prepare: Callable[[torch.dtype, int], Batch]


def compare(
    mode: Mode,
    *,
    sizes: Sequence[int] = SIZES,
    width: int = WIDTH,
    tell: Callable[[dict[str, Any]], None] = lambda claim: None,
) -> list[dict[str, Any]]:
    """Compare every operation in every type; an error of one is part of its claim.

    Args:
        mode: enters the batch-invariant mode.
        sizes: of the batches.
        width: of the rows.
        tell: is told each claim as soon as it is there.
    """
    claims = []
    for operation in OPERATIONS:
        for dtype in operation.dtypes:
            claim: dict[str, Any] = {
                "operator": operation.operator,
                "form": operation.form,
                "dtype": dtype,
                "sizes": list(sizes),
            }
            alone: dict[str, torch.Tensor] = {}
            for name, context in (("off", nullcontext), ("on", mode)):
                claim[name], row = _measured(operation, dtype, context, sizes, width)
                if row is not None:
                    alone[name] = row
            claim["deviation"] = _deviation(**alone) if len(alone) == 2 else None
            claims.append(claim)
            tell(claim)
    return claims


def _measured(
    operation: Operation, dtype: str, context: Mode, sizes: Sequence[int], width: int
) -> tuple[dict[str, Any], torch.Tensor | None]:
    try:
        with context(), torch.no_grad():
            batch = operation.prepare(getattr(torch, dtype), width)
            row = batch([0])[0].cpu()
            first = next(_differences(batch, row, sizes), None)
    except Exception as error:  # noqa: BLE001  # one comparison must not stop the others
        return {"error": brief(error)}, None
    return {"equal": first is None, "first": first}, row


def _differences(
    batch: Batch, alone: torch.Tensor, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Give each batch in which row 0 has other bits than alone, with the first of them."""
    expected = _bits(alone)
    for size in sizes:
        for place in sorted({0, size // 2, size - 1}):
            rows = [*range(1, place + 1), 0, *range(place + 1, size)]
            found = batch(rows)[place].cpu()
            if found.dtype != alone.dtype or found.shape != alone.shape:
                yield {"size": size, "place": place, "shape": list(found.shape)}
                continue
            differ = (_bits(found) != expected).flatten().nonzero().flatten()
            if len(differ):
                index = int(differ[0])
                yield {
                    "size": size,
                    "place": place,
                    "element": index,
                    "alone": _hexadecimal(expected, index),
                    "in_batch": _hexadecimal(_bits(found), index),
                    "elements": len(differ),
                    "of": expected.numel(),
                }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_BITS[tensor.dtype])


def _hexadecimal(bits: torch.Tensor, index: int) -> str:
    width = 8 * bits.element_size()
    return f"{int(bits.flatten()[index]) % 2**width:0{width // 4}x}"


def _deviation(off: torch.Tensor, on: torch.Tensor) -> float | None:
    """Give how far the mode's result is from the native one, beside its largest element."""
    if off.shape != on.shape:
        return None
    largest = float(off.double().abs().max())
    return float((on.double() - off.double()).abs().max()) / largest if largest else None


def _random(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class _Rows:
    """Hold rows on the CPU, each made from a seed of its own, whatever the batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    salt: int = 0
    made: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, rows: Sequence[int]) -> torch.Tensor:
        """Give these rows on the device, in memory of their own."""
        for row in {*rows} - {*self.made}:
            seed = 1_000_003 * self.salt + row
            self.made[row] = _random(*self.shape, seed=seed, dtype=self.dtype)
        return torch.stack([self.made[row] for row in rows]).to("npu")


def _weight(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Make a weight whose products neither grow nor vanish."""
    return (_random(*shape, seed=7, dtype=dtype) / math.sqrt(shape[0])).to("npu")


def _rows_by(
    call: Callable[..., torch.Tensor],
    shape: Callable[[int], tuple[int, ...]] = lambda width: (width,),
    weight: Callable[[int], tuple[int, ...]] | None = None,
) -> Callable[[torch.dtype, int], Batch]:
    def prepare(dtype: torch.dtype, width: int) -> Batch:
        rows = _Rows(shape(width), dtype)
        more = [] if weight is None else [_weight(*weight(width), dtype=dtype)]
        return lambda numbers: call(rows(numbers), *more)

    return prepare


def _square(width: int) -> tuple[int, ...]:
    return width, width


def _addmm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weight[0].contiguous(), x, weight)


def _linear_with_bias(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, weight[0].contiguous())


def _bmm_of_tokens(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply as absorbed weights of MLA do: a matrix a head, the tokens are its rows."""
    by_head = x.reshape(x.shape[0], _HEADS, -1).transpose(0, 1)
    heads = weight.reshape(_HEADS, by_head.shape[-1], -1)
    return torch.bmm(by_head, heads).transpose(0, 1)


def _bmm_of_requests(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, weight.expand(x.shape[0], *weight.shape).contiguous())


def _mean_of_all(dtype: torch.dtype, width: int) -> Batch:
    """Take the mean over everything of one row as the mean over its last axis among others."""
    rows = _Rows((width,), dtype)

    def batch(numbers: Sequence[int]) -> torch.Tensor:
        x = rows(numbers)
        return x.mean().reshape(1) if len(numbers) == 1 else x.mean(-1)

    return batch


def _norm(output: int) -> Callable[[torch.dtype, int], Batch]:
    def prepare(dtype: torch.dtype, width: int) -> Batch:
        x, residual = _Rows((width,), dtype), _Rows((width,), dtype, salt=1)
        gamma = _random(width, seed=7, dtype=dtype).to("npu")

        def batch(numbers: Sequence[int]) -> torch.Tensor:
            operator = getattr(_torch_npu(), ADD_RMS_NORM)
            result: torch.Tensor = operator(x(numbers), residual(numbers), gamma, 1e-6)[output]
            return result

        return batch

    return prepare


def _attention(prefill: bool, owner: Callable[[], Any], dtype: torch.dtype, width: int) -> Batch:
    """Attend over a paged cache as SGLang does; every request has a length of its own."""
    del width
    tokens = _TOKENS if prefill else 1
    query = _Rows((tokens, _HEADS, _HEAD), dtype)
    cache = (_PAGES, _PAGE, _KV_HEADS * _HEAD)
    keys, values = _Rows(cache, dtype, salt=1), _Rows(cache, dtype, salt=2)

    def batch(numbers: Sequence[int]) -> torch.Tensor:
        count = len(numbers)
        q = query(numbers)
        options: dict[str, Any] = {
            "block_table": torch.arange(count * _PAGES, dtype=torch.int32)
            .reshape(count, _PAGES)
            .to("npu"),
            "block_size": _PAGE,
            "num_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "scale": _HEAD**-0.5,
            "actual_seq_lengths_kv": [
                tokens + (61 + 97 * number) % (_PAGES * _PAGE - tokens) for number in numbers
            ],
        }
        if prefill:
            q = q.reshape(-1, _HEADS, _HEAD)
            options |= {
                "input_layout": "TND",
                "sparse_mode": 3,
                "atten_mask": torch.ones(_MASK, _MASK, dtype=torch.bool).triu(1).to("npu"),
                "actual_seq_lengths": [tokens * (place + 1) for place in range(count)],
            }
        else:
            q = q.reshape(count, 1, _HEADS * _HEAD)
            options["input_layout"] = "BSH"
        pages = [each(numbers).reshape(-1, *cache[1:]) for each in (keys, values)]
        result: torch.Tensor = getattr(owner(), ATTENTION)(q, *pages, **options)[0]
        return result.reshape(count, -1)

    return batch


def _torch_npu() -> Any:
    import torch_npu

    return torch_npu


OPERATIONS = (
    Operation("mm", "torch.mm(x, w)", FLOATS, _rows_by(torch.mm, weight=_square)),
    Operation("matmul", "x @ w", FLOATS, _rows_by(torch.matmul, weight=_square)),
    Operation(
        "matmul",
        "x @ w, x of three dimensions",
        FLOATS,
        _rows_by(torch.matmul, lambda width: (3, width), _square),
    ),
    Operation(
        "matmul", "linear(x, w)", FLOATS, _rows_by(torch.nn.functional.linear, weight=_square)
    ),
    Operation("addmm", "torch.addmm(bias, x, w)", FLOATS, _rows_by(_addmm, weight=_square)),
    Operation("addmm", "linear(x, w, bias)", FLOATS, _rows_by(_linear_with_bias, weight=_square)),
    Operation(
        "bmm",
        "torch.bmm(x, w), tokens by heads",
        FLOATS,
        _rows_by(_bmm_of_tokens, weight=lambda width: (width, 64)),
    ),
    Operation(
        "bmm",
        "torch.bmm(x, w), requests by tokens",
        FLOATS,
        _rows_by(_bmm_of_requests, lambda width: (3, width), lambda width: (width, 64)),
    ),
    Operation("mean", "x.mean()", FLOATS, _mean_of_all),
    Operation("mean.dim", "x.mean(-1)", FLOATS, _rows_by(lambda x: x.mean(-1))),
    Operation(
        "mean.dim",
        "x.mean((1, 2))",
        FLOATS,
        _rows_by(lambda x: x.mean((1, 2)), lambda width: (3, width)),
    ),
    Operation(
        "log_softmax",
        "x.log_softmax(-1)",
        FLOATS,
        # As long as a vocabulary is beside a hidden state.
        _rows_by(lambda x: x.log_softmax(-1), lambda width: (32 * width,)),
    ),
    *(
        Operation(
            "fused_attention",
            f"{name}.{ATTENTION}, {'prefill' if prefill else 'decode'}",
            HALVES,
            partial(_attention, prefill, owner),
        )
        for name, owner in (("torch.ops.npu", lambda: torch.ops.npu), ("torch_npu", _torch_npu))
        for prefill in (False, True)
    ),
    *(
        Operation("add_rms_norm", f"torch_npu.{ADD_RMS_NORM}, {part}", FLOATS, _norm(output))
        for output, part in enumerate(("the normed sum", "rstd"))
    ),
)
