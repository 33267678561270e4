"""The operators of dense models compute what their names say, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import dense, device, schemas, sgl_kernel_npu, torch_npu
from sgl_npu_patch.simulator.sgl_kernel_npu import PACKAGE, PARTS

HEAD = 8


@pytest.fixture(autouse=True)
def fake() -> Iterator[Any]:
    device.install()
    yield torch_npu.install(schemas.DEFAULT, **dense.KERNELS)
    torch_npu.uninstall()


def _angles(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(tokens, HEAD // 2) * 3
    return angles.cos(), angles.sin()


def _turned(pairs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate (..., width / 2, 2) as complex numbers."""
    turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[:, None]
    return torch.view_as_real(turned)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation(fake: Any, interleaved: bool) -> None:
    cos, sin = _angles(3)
    heads = torch.rand(3, 2, HEAD)
    shape = (3, 2, HEAD // 2, 2) if interleaved else (3, 2, 2, HEAD // 2)
    pairs = heads.view(shape) if interleaved else heads.view(shape).transpose(-1, -2)
    turned = _turned(pairs, cos, sin)
    expected = (turned if interleaved else turned.transpose(-1, -2)).reshape(heads.shape)
    torch.testing.assert_close(dense.rotate(heads, cos, sin, interleaved=interleaved), expected)
    rotary_mode = "interleave" if interleaved else "half"
    table, positions = torch.cat((cos, sin), -1), torch.arange(3)
    given = [device.npu(each) for each in (positions, heads.flatten(1), heads.flatten(1), table)]
    for result in fake.npu_mrope(*given, HEAD, mrope_section=[0, 0, 0], rotary_mode=rotary_mode):
        torch.testing.assert_close(device.cpu(result), expected.flatten(1))
    if not interleaved:
        doubled = [device.npu(torch.cat((each, each), -1)[:, None]) for each in (cos, sin)]
        result = fake.npu_rotary_mul(device.npu(heads), *doubled)
        torch.testing.assert_close(device.cpu(result), expected)
    apart = PARTS[f"{PACKAGE}.norm.fused_rope_qk_mqa"]["fused_rope_qk_mqa"]
    wide = torch.cat((heads, heads), -1)
    results = apart(device.npu(wide), device.npu(wide), given[3], HEAD, not interleaved)  # type: ignore[operator]
    for result in results:
        torch.testing.assert_close(device.cpu(result), torch.cat((expected, heads), -1))


def test_what_is_not_simulated_is_refused(fake: Any) -> None:
    x = device.npu(torch.ones(2, HEAD))
    with pytest.raises(NotImplementedError, match="npu_mrope takes no mrope_section"):
        fake.npu_mrope(x, x, x, x, HEAD, mrope_section=[1, 1, 2])
    with pytest.raises(NotImplementedError, match="npu_format_cast takes no customize_dtype"):
        fake.npu_format_cast(x, 29, customize_dtype=1)
    with pytest.raises(NotImplementedError, match="one index a row"):
        fake.npu_scatter_nd_update_(x, device.npu(torch.zeros(2, 2, dtype=torch.int64)), x)


def test_the_cache_is_written_in_its_slots(fake: Any) -> None:
    keys, values = torch.rand(3, 2, HEAD), torch.rand(3, 2, HEAD)
    slots = torch.tensor([5, 0, 3], dtype=torch.int32)
    caches = [torch.zeros(4, 2, 2, HEAD) for _ in range(2)]
    given = [device.npu(each) for each in (keys, values, *caches, slots)]
    assert fake._npu_reshape_and_cache(*given) is None
    assert torch.equal(caches[0].flatten(0, 1)[[5, 0, 3]], keys)
    assert torch.equal(caches[1].flatten(0, 1)[[5, 0, 3]], values)
    assert not caches[0].flatten(0, 1)[[1, 2, 4, 6, 7]].any()
    rows = torch.zeros(4, HEAD)
    updated = fake.npu_scatter_nd_update_(
        device.npu(rows), device.npu(torch.tensor([[2], [1]])), device.npu(torch.ones(2, HEAD))
    )
    assert rows.sum(-1).tolist() == [0, HEAD, HEAD, 0]
    assert device.cpu(updated).data_ptr() == rows.data_ptr()


def test_swiglu_and_format(fake: Any) -> None:
    x = torch.rand(3, 8, dtype=torch.bfloat16)
    gate, up = x.float().chunk(2, -1)
    expected = (gate * gate.sigmoid() * up).to(torch.bfloat16)
    torch.testing.assert_close(device.cpu(fake.npu_swiglu(device.npu(x))), expected)
    assert torch.equal(device.cpu(fake.npu_format_cast(device.npu(x), 29)), x)


def test_slots_are_given_in_whole_pages() -> None:
    kernel = PARTS[f"{PACKAGE}.mem_cache.allocator"]["alloc_extend_kernel"]
    assert isinstance(kernel, sgl_kernel_npu.Kernel)
    out = torch.full((2 + 7 + 1,), -1, dtype=torch.int32)
    before, after, last = ([2, 3, 0], [4, 10, 1], [21, 42, -1])
    given = [torch.tensor(each) for each in (before, after, last, [7, 9, 5, 1])]
    kernel[3,](*map(device.npu, given), device.npu(out), 4, 4, 16)
    assert out.tolist() == [22, 23, 43, 28, 29, 30, 31, 36, 37, 20]


@pytest.mark.parametrize("bias", [False, True])
def test_norm_and_rotation_of_heads(bias: bool) -> None:
    kernel: Any = PARTS[f"{PACKAGE}.norm.split_qkv_rmsnorm_rope"]["split_qkv_rmsnorm_rope"]
    cos, sin = _angles(3)
    qkv = torch.rand(3, 4 * HEAD)
    weights = [torch.rand(HEAD) for _ in range(4)]
    doubled = [device.npu(torch.cat((each, each), -1)) for each in (sin, cos)]
    norm = dict(zip(("q_weight", "k_weight", "q_bias", "k_bias"), weights, strict=True))
    given = {name: device.npu(value) for name, value in norm.items() if bias or "bias" not in name}
    found = kernel(device.npu(qkv), *doubled, 2 * HEAD, HEAD, HEAD, eps=1e-6, **given)
    parts = torch.split(qkv, [2 * HEAD, HEAD, HEAD], -1)
    for part, result, name in zip(parts, found, "qk", strict=False):
        heads = part.reshape(3, -1, HEAD)
        normed = torch.nn.functional.rms_norm(heads, (HEAD,), norm[f"{name}_weight"], 1e-6)
        normed = normed + norm[f"{name}_bias"] if bias else normed
        expected = dense.rotate(normed, cos, sin, interleaved=False).flatten(1)
        torch.testing.assert_close(device.cpu(result), expected)
    assert torch.equal(device.cpu(found[2]), parts[2])
