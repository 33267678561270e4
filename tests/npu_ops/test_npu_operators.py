"""The operators that are called as attributes: fused attention, its workspace, add_rms_norm."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import device, extension, torch_npu
from tests.npu_ops.bits import on_npu, same_bits

ATTENTION = "npu_fused_infer_attention_score"
WORKSPACE = "_npu_fused_infer_attention_score_get_max_workspace"

each_version = pytest.mark.parametrize("extension_version", ["1.0.0", "2.0.0"])


@pytest.fixture(params=["torch_npu", "torch.ops.npu"])
def namespace(request: pytest.FixtureRequest, fake_torch_npu: Any) -> Any:
    return fake_torch_npu if request.param == "torch_npu" else torch.ops.npu


def _operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return on_npu(3, 1, 8), on_npu(3, 4, 8, seed=1), on_npu(3, 4, 8, seed=2)


def _buffers() -> list[torch.Tensor]:
    return [on_npu(3, 1, 8, seed=9), device.npu(torch.empty(0))]


@each_version
@pytest.mark.usefixtures("mode", "grad_mode", "extension_version")
@pytest.mark.parametrize("overload", ["", "default"])
def test_attention_passes_every_argument_through(namespace: Any, overload: str) -> None:
    operator = getattr(namespace, ATTENTION)
    operator = getattr(operator, overload) if overload else operator
    mask = device.npu(torch.zeros(1, 4, dtype=torch.bool))
    # Each differs from its default, which torch would not pass on.
    given: dict[str, Any] = {
        "actual_seq_lengths": [1, 1, 1],
        "actual_seq_lengths_kv": [4, 2, 3],
        "num_heads": 2,
        "scale": 0.5,
        "pre_tokens": 7,
        "next_tokens": 3,
        "input_layout": "BSND",
        "num_key_value_heads": 2,
        "inner_precise": 1,
        "block_size": 16,
    }
    query, key, value = (tensor.reshape(3, -1, 2, 4) for tensor in _operands())
    attended, _ = operator(query, key, value, atten_mask=mask, **given)
    (call,) = extension.calls
    assert call.operator == f"{ATTENTION}_batch_invariant"
    assert [t.data_ptr() for t in call.args] == [t.data_ptr() for t in (query, key, value)]
    assert call.kwargs.pop("atten_mask").data_ptr() == mask.data_ptr()
    assert call.kwargs == given
    assert attended.shape == query.shape
    assert torch_npu.native_calls == []


@pytest.mark.usefixtures("mode", "grad_mode")
def test_out_writes_to_the_buffers(namespace: Any) -> None:
    query, key, value = _operands()
    options: dict[str, Any] = {"num_heads": 2, "actual_seq_lengths_kv": [4, 2, 3]}
    workspace = getattr(namespace, WORKSPACE)(query, key, value, **options)
    out = _buffers()
    operator = getattr(namespace, ATTENTION)
    operator.out(query, key, value, workspace=workspace, out=out, **options)
    assert same_bits(out[0], operator(query, key, value, **options)[0])
    other = _buffers()
    operator(query, key, value, workspace=workspace, out=other, **options)
    assert same_bits(other[0], out[0])
    assert torch_npu.native_calls == []


@pytest.mark.parametrize("extension_version", ["1.0.0"])
@pytest.mark.usefixtures("mode", "grad_mode", "extension_version")
def test_without_out_calling_it_names_the_version(namespace: Any) -> None:
    operator = getattr(namespace, ATTENTION)
    out = _buffers()
    before = device.cpu(out[0]).clone()
    for call in (operator.out, operator):
        with pytest.raises(RuntimeError, match=r"\.out .*version 2\.0\.0 of Ascend's extension"):
            call(*_operands(), num_heads=2, workspace=None, out=out)
    assert torch.equal(device.cpu(out[0]), before)
    with pytest.raises(RuntimeError, match=r"get_max_workspace .*version 2\.0\.0"):
        getattr(namespace, WORKSPACE)(*_operands(), num_heads=2)
    assert extension.calls == []
    assert torch_npu.native_calls == []


@pytest.mark.parametrize("extension_version", ["1.0.0"])
@pytest.mark.usefixtures("mode", "extension_version")
def test_the_stand_in_of_1_0_0_is_otherwise_the_operator(namespace: Any) -> None:
    operator = getattr(namespace, ATTENTION)
    native = torch.ops.batch_invariant_ops.npu_fused_infer_attention_score_batch_invariant
    assert operator.default is native.default
    assert operator.overloads() == ["default"]
    assert not hasattr(operator, "no_such_overload")


@each_version
@pytest.mark.usefixtures("extension_version")
def test_a_torch_npu_without_the_workspace_operator_gets_none(
    mode: Any, fake_torch_npu: Any
) -> None:
    mode._state.library._destroy()
    mode.disable()
    delattr(fake_torch_npu, WORKSPACE)
    mode.enable()
    assert not hasattr(fake_torch_npu, WORKSPACE)
    assert getattr(torch.ops.npu, WORKSPACE) is not None


@pytest.mark.usefixtures("mode", "grad_mode")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_add_rms_norm(namespace: Any, dtype: torch.dtype) -> None:
    x1, x2, gamma = (on_npu(*shape, dtype=dtype) for shape in ((3, 8), (3, 8), (8,)))
    normed, rstd, total = namespace.npu_add_rms_norm(x1, x2, gamma, 1e-5)
    assert torch_npu.native_calls == ["npu_rms_norm"]
    assert torch.equal(device.cpu(total), device.cpu(x1) + device.cpu(x2))
    expected = torch.nn.functional.rms_norm(device.cpu(total), (8,), device.cpu(gamma), 1e-5)
    torch.testing.assert_close(device.cpu(normed), expected, rtol=2e-2, atol=1e-5)
    variance = device.cpu(total).float().square().mean(-1, keepdim=True) + 1e-5
    torch.testing.assert_close(device.cpu(rstd), variance.rsqrt())


@pytest.mark.usefixtures("mode")
def test_add_rms_norm_is_called_as_the_native_one(namespace: Any, fake_torch_npu: Any) -> None:
    schema = torch._C.parse_schema(
        "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> Tensor"
    )
    parameters = inspect.signature(namespace.npu_add_rms_norm).parameters
    assert [*parameters] == [argument.name for argument in schema.arguments]
    assert parameters["epsilon"].default == schema.arguments[-1].default_value
    by_name = namespace.npu_add_rms_norm(x1=on_npu(2, 4), x2=on_npu(2, 4), gamma=on_npu(4))
    by_place = namespace.npu_add_rms_norm(on_npu(2, 4), on_npu(2, 4), on_npu(4), 1e-6)
    assert all(same_bits(a, b) for a, b in zip(by_name, by_place, strict=True))


@pytest.mark.usefixtures("mode")
def test_epsilon_reaches_the_kernel(namespace: Any) -> None:
    x, gamma = on_npu(2, 4), on_npu(4)
    small, large = (namespace.npu_add_rms_norm(x, x, gamma, epsilon=e)[0] for e in (1e-6, 1.0))
    assert not same_bits(small, large)


@pytest.mark.usefixtures("mode")
def test_both_namespaces_have_the_same_objects(fake_torch_npu: ModuleType) -> None:
    for name in (ATTENTION, WORKSPACE, "npu_add_rms_norm"):
        assert getattr(fake_torch_npu, name) is getattr(torch.ops.npu, name)
