"""mm, matmul, bmm and addmm do what aten's do, on kernels that take less."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from sgl_npu_patch.simulator import device, extension
from tests.npu_ops.bits import on_npu

pytestmark = pytest.mark.usefixtures("mode", "no_grad")


def assert_as_aten(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """Check values, dtype, shape and strides against the CPU's."""
    result = function(*tensors)
    expected = function(*map(device.cpu, tensors))
    assert result.device.type == "npu"
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.is_contiguous()
    tolerance = 1e-5 if expected.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(device.cpu(result), expected, rtol=tolerance, atol=tolerance)


def test_every_product_in_inference_mode() -> None:
    with torch.inference_mode():
        assert_as_aten(torch.mm, on_npu(4, 6), on_npu(6, 5))
        assert_as_aten(torch.matmul, on_npu(2, 4, 6), on_npu(6, 5))
        assert_as_aten(torch.bmm, on_npu(3, 4, 6), on_npu(3, 6, 5))
        assert_as_aten(functional.linear, on_npu(4, 6), on_npu(5, 6), on_npu(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_mm(dtype: torch.dtype) -> None:
    assert_as_aten(torch.mm, on_npu(4, 6, dtype=dtype), on_npu(6, 5, dtype=dtype))
    assert extension.called("npu_mm_batch_invariant")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 6), (6, 5)),
        ((1, 6), (6, 1)),
        ((2, 4, 6), (6, 5)),
        ((2, 3, 4, 6), (6, 5)),
        ((6,), (6, 5)),
        ((4, 6), (6,)),
        ((2, 4, 6), (6,)),
        ((6,), (6,)),
        ((6,), (2, 6, 5)),
        ((4, 6), (2, 6, 5)),
        ((2, 4, 6), (2, 6, 5)),
        ((3, 1, 4, 6), (2, 6, 5)),
        ((3, 2, 4, 6), (3, 1, 6, 5)),
        ((0, 6), (6, 5)),
        ((4, 0), (0, 5)),
        ((4, 6), (6, 0)),
        ((0, 4, 6), (6, 5)),
        ((2, 4, 0), (2, 0, 5)),
        ((0, 4, 6), (0, 6, 5)),
        ((0,), (0,)),
        ((0,), (0, 5)),
    ],
)
def test_matmul_of_any_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert_as_aten(torch.matmul, on_npu(*left), on_npu(*right, seed=1))


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 6), (5, 6)), ((4, 6), (6,)), ((2, 4, 6), (3, 6, 5)), ((2, 4, 6), (2, 5, 5)), ((), (6,))],
)
def test_what_aten_refuses_to_multiply(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = on_npu(*left), on_npu(*right)
    if left == (4, 6) and right == (6,):
        assert torch.matmul(a, b).shape == (4,)
        return
    with pytest.raises(RuntimeError):
        torch.matmul(device.cpu(a), device.cpu(b))
    with pytest.raises(RuntimeError):
        torch.matmul(a, b)


def test_operands_that_are_views() -> None:
    a, b = on_npu(6, 4).t(), on_npu(9, 10)[1:7, ::2]
    assert not a.is_contiguous()
    assert not b.is_contiguous()
    assert_as_aten(torch.mm, a, b)
    assert_as_aten(torch.bmm, a.expand(3, 4, 6), b.expand(3, 6, 5))
    assert_as_aten(torch.addmm, on_npu(5, 4).t(), a, b)
    assert_as_aten(torch.matmul, on_npu(2, 6, 4).transpose(1, 2), b)


@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6), (1, 1, 6), (0, 6), (6,)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(shape: tuple[int, ...], bias: bool) -> None:
    operands = [on_npu(*shape), on_npu(5, 6, seed=1), *([on_npu(5, seed=2)] if bias else [])]
    assert_as_aten(functional.linear, *operands)
    if math.prod(shape):
        assert extension.called(f"npu_{'mm' if bias else 'matmul'}_batch_invariant")


@pytest.mark.parametrize(
    ("left", "right"), [((3, 4, 6), (3, 6, 5)), ((0, 4, 6), (0, 6, 5)), ((3, 4, 0), (3, 0, 5))]
)
def test_bmm(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert_as_aten(torch.bmm, on_npu(*left), on_npu(*right))


@pytest.mark.parametrize(
    ("left", "right"), [((3, 4, 6), (2, 6, 5)), ((3, 4, 6), (3, 5, 5)), ((4, 6), (6, 5))]
)
def test_what_bmm_refuses(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        torch.bmm(on_npu(*left), on_npu(*right))


@pytest.mark.parametrize(
    ("bias", "beta", "alpha", "dtype"),
    [
        *((bias, 1, 1, torch.float32) for bias in ((5,), (1, 5), (4, 1), (4, 5), (1,), (1, 1), ())),
        *(
            ((5,), *scales, torch.float32)
            for scales in ((0.5, 1), (1, -2), (0.25, 3.0), (0, 1), (0, 2))
        ),
        ((5,), 1, 1, torch.bfloat16),
        ((4, 1), 0.25, 3.0, torch.bfloat16),
    ],
)
def test_addmm(bias: tuple[int, ...], beta: float, alpha: float, dtype: torch.dtype) -> None:
    def scaled(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.addmm(*tensors, beta=beta, alpha=alpha)

    operands = [on_npu(*shape, dtype=dtype) for shape in (bias, (4, 6), (6, 5))]
    assert_as_aten(scaled, *operands)
    assert extension.called("npu_mm_batch_invariant")


def test_addmm_scales_the_bias_alone_when_nothing_is_summed() -> None:
    assert_as_aten(torch.addmm, on_npu(5), on_npu(4, 0), on_npu(0, 5))
    assert_as_aten(torch.addmm, on_npu(5), on_npu(0, 6), on_npu(6, 5))


def test_addmm_does_not_read_the_bias_at_beta_zero() -> None:
    bias = device.npu(torch.full((5,), math.nan))
    result = torch.addmm(bias, on_npu(4, 6), on_npu(6, 5), beta=0)
    assert device.cpu(result).isfinite().all()


@pytest.mark.parametrize(
    ("bias", "beta"),
    [((4, 4), 1), ((6,), 1), ((1, 4, 5), 1), ((2, 4, 5), 1), ((8, 5), 1), ((6,), 0)],
)
def test_addmm_refuses_a_bias_that_does_not_broadcast(bias: tuple[int, ...], beta: int) -> None:
    operands = [on_npu(*bias), on_npu(4, 6), on_npu(6, 5)]
    with pytest.raises(RuntimeError):
        torch.addmm(*map(device.cpu, operands), beta=beta)
    with pytest.raises(RuntimeError):
        torch.addmm(operands[0], operands[1], operands[2], beta=beta)


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_addmm_refuses_different_dtypes_as_aten_does(dtypes: tuple[torch.dtype, ...]) -> None:
    shapes = ((5,), (4, 6), (6, 5))
    operands = [on_npu(*shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with pytest.raises(RuntimeError, match="dtype"):
        torch.addmm(*map(device.cpu, operands))
    with pytest.raises(RuntimeError, match="one dtype"):
        torch.addmm(operands[0], operands[1], operands[2])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.complex64, torch.bool], ids=str)
def test_types_that_the_kernels_lack_are_a_clear_error(mode: Any, dtype: torch.dtype) -> None:
    a, b = (device.npu(torch.ones(shape, dtype=dtype)) for shape in ((4, 4), (4, 4)))
    for product in (torch.mm, torch.matmul):
        name = product.__name__
        with pytest.raises(RuntimeError, match=f"{name} takes floating point .* got {dtype}"):
            product(a, b)
    with pytest.raises(RuntimeError, match="mm takes floating point"):
        torch.addmm(a, a, b)
    with pytest.raises(RuntimeError, match="bmm takes floating point"):
        torch.bmm(a[None], b[None])
    assert extension.calls == []


def test_different_dtypes_of_the_operands_are_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="one dtype"):
        torch.mm(on_npu(4, 6), on_npu(6, 5, dtype=torch.bfloat16))


def test_mm_refuses_what_is_not_a_matrix(mode: Any) -> None:
    with pytest.raises(RuntimeError, match="matrices"):
        torch.mm(on_npu(2, 4, 6), on_npu(6, 5))
