"""A request's row has the same bits alone and in any batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from sgl_npu_patch.simulator import device
from tests.npu_ops.bits import on_npu, same_bits

WIDTH = 24
ROWS = 7

Operator = Callable[[torch.Tensor, Any], torch.Tensor]


def _weight(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return on_npu(*shape, dtype=like.dtype, seed=1)


def _attention(
    x: torch.Tensor, call: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    keys = x.reshape(x.shape[0], 2, WIDTH // 2)
    query = x[:, None, : WIDTH // 2]
    return call(query, keys, keys, num_heads=3, scale=0.3, input_layout="BSH")[0]


def _attention_out(x: torch.Tensor, npu: Any) -> torch.Tensor:
    workspace = npu._npu_fused_infer_attention_score_get_max_workspace(x, x, x)
    out = [x.new_empty(x.shape[0], 1, WIDTH // 2), x.new_empty(0, dtype=torch.float32)]

    def call(*args: Any, **kwargs: Any) -> Any:
        operator = npu.npu_fused_infer_attention_score.out
        return operator(*args, **kwargs, workspace=workspace, out=out)

    _attention(x, call)
    return out[0]


def _into(call: Callable[..., torch.Tensor], x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Call it with a buffer of that shape as ``out``."""
    out = x.new_empty(shape)
    call(out=out)
    return out


def _zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return x.new_zeros(shape)


OPERATORS: dict[str, Operator] = {
    "mm.out": lambda x, npu: _into(partial(torch.mm, x, _weight(x, WIDTH, 5)), x, x.shape[0], 5),
    "matmul.out": lambda x, npu: _into(
        partial(torch.matmul, x, _weight(x, WIDTH, 5)), x, x.shape[0], 5
    ),
    "addmm.out": lambda x, npu: _into(
        partial(torch.addmm, _zeros(x, x.shape[0], 5), x, _weight(x, WIDTH, 5)), x, x.shape[0], 5
    ),
    "addmm_": lambda x, npu: _zeros(x, x.shape[0], 5).addmm_(x, _weight(x, WIDTH, 5)),
    "bmm.out": lambda x, npu: _into(
        partial(torch.bmm, x[:, None], x[:, :, None]), x, x.shape[0], 1, 1
    ),
    "baddbmm": lambda x, npu: torch.baddbmm(
        _zeros(x, x.shape[0], 1, 5),
        x[:, None],
        _weight(x, 1, WIDTH, 5).expand(x.shape[0], WIDTH, 5),
    ),
    "baddbmm_": lambda x, npu: _zeros(x, x.shape[0], 1, 1).baddbmm_(x[:, None], x[:, :, None]),
    "addbmm": lambda x, npu: torch.addbmm(
        _zeros(x, x.shape[0], 5), x[None], _weight(x, 1, WIDTH, 5)
    ),
    "addbmm_": lambda x, npu: _zeros(x, x.shape[0], 5).addbmm_(x[None], _weight(x, 1, WIDTH, 5)),
    "mv": lambda x, npu: torch.mv(x, _weight(x, WIDTH)),
    "mv.out": lambda x, npu: _into(partial(torch.mv, x, _weight(x, WIDTH)), x, x.shape[0]),
    "addmv": lambda x, npu: torch.addmv(_zeros(x, 1), x, _weight(x, WIDTH)),
    "addmv_": lambda x, npu: _zeros(x, x.shape[0]).addmv_(x, _weight(x, WIDTH)),
    "mean.out": lambda x, npu: _into(partial(torch.mean, x, -1), x, x.shape[0]),
    "log_softmax.out": lambda x, npu: _into(partial(torch.log_softmax, x, -1), x, *x.shape),
    "sum.out": lambda x, npu: _into(partial(torch.sum, x, -1), x, x.shape[0]),
    "softmax.out": lambda x, npu: _into(partial(torch.softmax, x, -1), x, *x.shape),
    "mm": lambda x, npu: torch.mm(x, _weight(x, WIDTH, 5)),
    "linear": lambda x, npu: functional.linear(x, _weight(x, 5, WIDTH)),
    "linear with bias": lambda x, npu: functional.linear(x, _weight(x, 5, WIDTH), _weight(x, 5)),
    "linear of three axes with bias": lambda x, npu: functional.linear(
        x.reshape(-1, 1, WIDTH), _weight(x, 5, WIDTH), _weight(x, 5)
    ),
    "matmul of three axes": lambda x, npu: x.reshape(-1, 2, WIDTH // 2) @ _weight(x, WIDTH // 2, 5),
    "matmul of a batch": lambda x, npu: x.reshape(-1, 2, WIDTH // 2) @ x.reshape(-1, WIDTH // 2, 2),
    "matmul that broadcasts": lambda x, npu: (
        x.reshape(-1, 1, 2, WIDTH // 2) @ _weight(x, 3, WIDTH // 2, 2)
    ),
    "bmm": lambda x, npu: torch.bmm(x[:, None], x[:, :, None]),
    "einsum": lambda x, npu: torch.einsum("nk,km->nm", x, _weight(x, WIDTH, 5)),
    "mean of the last axis": lambda x, npu: x.mean(-1),
    "mean as in RMSNorm": lambda x, npu: x.float().pow(2).mean(-1, keepdim=True),
    "mean of an inner axis": lambda x, npu: x.reshape(-1, 4, WIDTH // 4).mean(1),
    "mean of two axes": lambda x, npu: x.reshape(-1, 4, WIDTH // 4).mean((1, 2)),
    "log_softmax": lambda x, npu: torch.log_softmax(x, -1),
    "log_softmax of an inner axis": lambda x, npu: x.reshape(-1, 4, WIDTH // 4).log_softmax(1),
    "add_rms_norm": lambda x, npu: npu.npu_add_rms_norm(x, x * 0.5, _weight(x, WIDTH))[0],
    "add_rms_norm's deviations": lambda x, npu: npu.npu_add_rms_norm(x, x, _weight(x, WIDTH))[1],
    "attention": lambda x, npu: _attention(x, npu.npu_fused_infer_attention_score),
    "attention.default": lambda x, npu: _attention(x, npu.npu_fused_infer_attention_score.default),
    "attention.out": _attention_out,
    "torch.ops attention": lambda x, npu: _attention(
        x, torch.ops.npu.npu_fused_infer_attention_score
    ),
    "torch.ops attention.default": lambda x, npu: _attention(
        x, torch.ops.npu.npu_fused_infer_attention_score.default
    ),
    "torch.ops attention.out": lambda x, npu: _attention_out(x, torch.ops.npu),
    "torch.ops add_rms_norm": lambda x, npu: torch.ops.npu.npu_add_rms_norm(
        x, x, _weight(x, WIDTH)
    )[0],
    "torch.ops add_rms_norm.default": lambda x, npu: torch.ops.npu.npu_add_rms_norm.default(
        x, x, _weight(x, WIDTH)
    )[0],
}

each_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=list(OPERATORS))
each_mode = pytest.mark.parametrize(
    ("dtype", "served"),
    [(torch.float32, torch.no_grad), (torch.bfloat16, torch.inference_mode)],
    ids=["float32 without gradients", "bfloat16 in inference mode"],
)


def differing(operator: Operator, npu: Any, dtype: torch.dtype) -> list[tuple[int, int]]:
    """Return the (row, batch size) at which a row's bits are not those it has alone."""
    batch = on_npu(ROWS, WIDTH, dtype=dtype)
    found = []
    with device.adversarial():
        alone = [operator(batch[row : row + 1], npu) for row in range(ROWS)]
        for size in range(2, ROWS + 1):
            together = operator(batch[:size], npu)
            found += [
                (row, size)
                for row in range(size)
                if not same_bits(together[row : row + 1], alone[row])
            ]
    return found


@each_operator
@each_mode
@pytest.mark.usefixtures("mode")
def test_a_row_has_the_bits_it_has_alone(
    operator: Operator, dtype: torch.dtype, served: Callable[[], Any], fake_torch_npu: Any
) -> None:
    with served():
        assert differing(operator, fake_torch_npu, dtype) == []


@each_operator
@pytest.mark.usefixtures("installed_extension", "npu_ops", "no_grad")
def test_without_the_mode_no_batch_gives_a_rows_own_bits(
    operator: Operator, fake_torch_npu: Any
) -> None:
    """What the test above detects is there to be detected, on every batch size."""
    assert {size for _, size in differing(operator, fake_torch_npu, torch.float32)} == set(
        range(2, ROWS + 1)
    )


@each_operator
@pytest.mark.usefixtures("no_grad", "installed_extension")
def test_leaving_the_mode_gives_the_native_bits_back(
    operator: Operator, npu_ops: Any, fake_torch_npu: Any
) -> None:
    batch = on_npu(ROWS, WIDTH)
    before = operator(batch, fake_torch_npu)
    library = npu_ops.enable()
    within = operator(batch, fake_torch_npu)
    npu_ops.disable()
    library._destroy()
    assert not same_bits(within, before)
    assert same_bits(operator(batch, fake_torch_npu), before)
