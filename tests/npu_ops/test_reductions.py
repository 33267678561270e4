"""Means, sums and softmax have aten's shapes and dtypes, on kernels for the last axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import device, extension
from tests.npu_ops.bits import on_npu

pytestmark = pytest.mark.usefixtures("mode")

SHAPES = [(), (5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (0,), (2, 0, 3), (0, 3)]
INPUTS = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
SUMMED = [*INPUTS, torch.float64, torch.int8]
OUTPUTS = [None, torch.float32, torch.bfloat16, torch.float16]


def _dims(rank: int) -> list[list[int] | None]:
    axes = [*range(-rank, rank)] or [0, -1]
    pairs = [[a, b] for a, b in itertools.permutations(range(rank), 2)]
    return [None, [], *([axis] for axis in axes), *pairs, [*range(rank)], [-1, 0][: max(rank, 1)]]


def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return on_npu(*shape).mul_(4).to(dtype)


def _outcome(
    tensor: torch.Tensor, *args: Any, function: Callable[..., torch.Tensor] = torch.mean, **kw: Any
) -> Any:
    """Return the mean, or what the function returns, or the type of the error."""
    try:
        return function(tensor, *args, **kw)
    except (RuntimeError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize(
    ("shape", "given", "dtype"),
    [
        *((shape, torch.float32, None) for shape in SHAPES),
        *(((2, 3, 4), *types) for types in itertools.product(INPUTS, OUTPUTS)),
    ],
    ids=str,
)
def test_mean_is_atens(
    shape: tuple[int, ...], given: torch.dtype, dtype: torch.dtype | None
) -> None:
    tensor = _filled(shape, given)
    for dim, keepdim in itertools.product(_dims(len(shape)), (False, True)):
        expected = _outcome(device.cpu(tensor), dim, keepdim, dtype=dtype)
        result = _outcome(tensor, dim, keepdim, dtype=dtype)
        if isinstance(expected, type):
            assert result is expected, (dim, keepdim)
            continue
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), (dim, keepdim)
        assert result.is_contiguous()
        tolerance = 1e-5 if expected.dtype == given == torch.float32 else 2e-2
        torch.testing.assert_close(
            device.cpu(result), expected, rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
def test_mean_without_an_axis(given: torch.dtype, dtype: torch.dtype | None) -> None:
    """torch_npu has a kernel of its own for aten::mean, beside that of aten::mean.dim."""
    tensor = _filled((3, 4), given)
    result, expected = tensor.mean(dtype=dtype), device.cpu(tensor).mean(dtype=dtype)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(device.cpu(result), expected, rtol=2e-2, atol=2e-2)
    assert len(extension.called("npu_reduce_mean_batch_invariant")) == 1


@pytest.mark.parametrize("dim", [None, [0], [1], [0, 2], [-1, 0]], ids=str)
def test_mean_is_one_call_of_the_kernel(dim: list[int] | None) -> None:
    on_npu(2, 3, 4).mean(dim)
    (call,) = extension.calls
    assert call.operator == "npu_reduce_mean_batch_invariant"
    assert call.args[0].dim() == 2


def test_mean_of_a_view() -> None:
    tensor = on_npu(6, 5, 4).transpose(0, 2)[:, 1:, ::2]
    torch.testing.assert_close(device.cpu(tensor.mean((0, 2))), device.cpu(tensor).mean((0, 2)))


@pytest.mark.parametrize("dim", [[3], [-4], [0, 0], [0, -3], [1, 5]], ids=str)
def test_axes_that_aten_refuses(dim: list[int]) -> None:
    tensor = on_npu(2, 3, 4)
    assert _outcome(tensor, dim) is _outcome(device.cpu(tensor), dim)
    assert isinstance(_outcome(tensor, dim), type)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.int64, None),
        (torch.bool, None),
        (torch.float32, torch.int32),
        (torch.complex64, None),
        (torch.complex64, torch.float32),
    ],
    ids=str,
)
def test_types_that_the_kernel_lacks_are_a_clear_error(
    given: torch.dtype, dtype: torch.dtype | None
) -> None:
    tensor = device.npu(torch.ones(3, 4, dtype=given))
    for dim in ([0], [0, 1], None):
        with pytest.raises(RuntimeError, match="mean takes a floating point"):
            torch.mean(tensor, dim, dtype=dtype)
    assert extension.calls == []


@pytest.mark.parametrize(
    ("shape", "given", "dtype"),
    [
        *((shape, torch.float32, None) for shape in SHAPES),
        *(((2, 3, 4), *types) for types in itertools.product(SUMMED, [*OUTPUTS, torch.int32])),
    ],
    ids=str,
)
def test_sum_is_atens(
    shape: tuple[int, ...], given: torch.dtype, dtype: torch.dtype | None
) -> None:
    """What has no fraction is added exactly, and without the kernel, which takes none of it."""
    tensor = _filled(shape, given)
    for dim, keepdim in itertools.product(_dims(len(shape)), (False, True)):
        expected = _outcome(device.cpu(tensor), dim, keepdim, function=torch.sum, dtype=dtype)
        result = _outcome(tensor, dim, keepdim, function=torch.sum, dtype=dtype)
        if isinstance(expected, type):
            assert result is expected, (dim, keepdim)
            continue
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), (dim, keepdim)
        half = {given, expected.dtype} & {torch.bfloat16, torch.float16}
        tolerance = 1e-1 if half else 1e-5 if expected.dtype.is_floating_point else 0
        torch.testing.assert_close(device.cpu(result), expected, rtol=tolerance, atol=tolerance)
    if dtype is None and tensor.numel():
        called = extension.called("npu_reduce_sum_batch_invariant")
        assert bool(called) == (given in (torch.float32, torch.bfloat16, torch.float16))


def test_sum_of_everything_is_exact_on_integers() -> None:
    values = torch.arange(-50, 951, dtype=torch.int64) * 10**12 + 1
    assert device.cpu(device.npu(values).sum()) == values.sum()
    flags = torch.tensor([True, False, True])
    assert device.cpu(device.npu(flags).sum()) == 2
    assert device.npu(flags).sum().dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int32], ids=str)
def test_a_row_of_a_sum_by_halves_does_not_depend_on_others(dtype: torch.dtype) -> None:
    rows = torch.randn(9, 1001, generator=torch.Generator().manual_seed(0)).mul_(1e3).to(dtype)
    alone = [device.cpu(device.npu(row[None]).sum(-1)) for row in rows]
    assert torch.equal(device.cpu(device.npu(rows).sum(-1)), torch.cat(alone))
    torch.testing.assert_close(torch.cat(alone), rows.sum(-1), rtol=1e-4, atol=1e-2)


def test_into_a_buffer() -> None:
    tensor, host = on_npu(3, 4), device.cpu(on_npu(3, 4))
    out = device.npu(torch.empty(0))
    assert torch.sum(tensor, -1, out=out) is out
    torch.testing.assert_close(device.cpu(out), host.sum(-1))
    assert torch.ops.aten._softmax.out(tensor, -1, False, out=out) is out
    torch.testing.assert_close(device.cpu(out), host.softmax(-1))
    with pytest.raises(RuntimeError, match="dtype"):
        torch.sum(tensor, -1, dtype=torch.float16, out=out)
    names = {call.operator for call in extension.calls}
    assert names == {"npu_reduce_sum_batch_invariant", "npu_softmax_batch_invariant"}


@pytest.mark.parametrize(
    ("shape", "given", "dtype"),
    [
        *((shape, torch.float32, None) for shape in SHAPES),
        *(((2, 3, 4), given, None) for given in (torch.bfloat16, torch.float16)),
        *(((2, 3, 4), given, torch.float32) for given in (torch.bfloat16, torch.float16)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["log_softmax", "softmax"])
def test_softmax_is_atens(
    name: str, shape: tuple[int, ...], given: torch.dtype, dtype: torch.dtype | None
) -> None:
    tensor, function = _filled(shape, given), getattr(torch, name)
    for dim in [*range(-len(shape), len(shape))] or [-1, 0]:
        result = function(tensor, dim, dtype=dtype)
        expected = function(device.cpu(tensor), dim, dtype=dtype)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        assert result.is_contiguous()
        tolerance = 2e-5 if expected.dtype == torch.float32 else 5e-2
        torch.testing.assert_close(device.cpu(result), expected, rtol=tolerance, atol=tolerance)
    if tensor.numel():
        assert extension.called(f"npu_{name}_batch_invariant")


@pytest.mark.parametrize("name", ["log_softmax", "softmax"])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16], ids=str)
def test_softmax_converts_half_to_float(given: torch.dtype, name: str) -> None:
    tensor = _filled((3, 4), given)
    result = getattr(torch.ops.aten, f"_{name}")(tensor, 0, True)
    expected = getattr(device.cpu(tensor).float(), name)(0)
    assert result.dtype == torch.float32
    torch.testing.assert_close(device.cpu(result), expected)
    assert device.cpu(extension.calls[-1].args[0]).dtype == torch.float32


def test_softmax_keeps_what_is_filtered() -> None:
    tensor = device.npu(torch.tensor([[0.0, -torch.inf, 1.0]]))
    assert device.cpu(torch.log_softmax(tensor, -1))[0, 1] == -torch.inf
    assert device.cpu(torch.softmax(tensor, -1))[0, 1] == 0


def test_log_softmax_of_a_view() -> None:
    tensor = on_npu(6, 5).t()[:, ::2]
    torch.testing.assert_close(device.cpu(tensor.log_softmax(0)), device.cpu(tensor).log_softmax(0))


@pytest.mark.parametrize("name", ["_log_softmax", "_softmax"])
def test_what_softmax_refuses(name: str) -> None:
    softmax = getattr(torch.ops.aten, name)
    with pytest.raises(RuntimeError, match="floating point"):
        softmax(device.npu(torch.ones(3, 4, dtype=torch.int64)), 1, False)
    with pytest.raises(RuntimeError, match="half precision"):
        softmax(on_npu(3, 4), 1, True)
    with pytest.raises(IndexError, match="out of range"):
        softmax(on_npu(3, 4), 2, False)
