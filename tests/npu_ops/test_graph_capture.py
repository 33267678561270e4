"""A captured graph renews the lengths of the replaced attention, where torch_npu can do that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import device, extension, torch_npu
from tests.npu_ops.bits import on_npu, same_bits

DEFAULT = "npu_fused_infer_attention_score_batch_invariant.default"
OUT = "npu_fused_infer_attention_score_batch_invariant.out"


def attend(lengths: list[int], operator: Any) -> Any:
    """Decode two requests of these lengths with an attention operator."""
    query, keys = on_npu(2, 1, 8), on_npu(2, 5, 8, seed=1)
    return operator(
        query,
        keys,
        keys,
        num_heads=2,
        scale=0.5,
        input_layout="BSH",
        actual_seq_lengths_kv=lengths,
    )


def _attend_out(lengths: list[int], npu: Any) -> torch.Tensor:
    query, keys = on_npu(2, 1, 8), on_npu(2, 5, 8, seed=1)
    options: dict[str, Any] = {
        "num_heads": 2,
        "scale": 0.5,
        "input_layout": "BSH",
        "actual_seq_lengths_kv": lengths,
    }
    workspace = npu._npu_fused_infer_attention_score_get_max_workspace(query, keys, keys, **options)
    out = [query.new_empty(query.shape), device.npu(torch.empty(0))]
    npu.npu_fused_infer_attention_score.out(
        query, keys, keys, workspace=workspace, out=out, **options
    )
    return out[0]


@pytest.mark.parametrize("torch_npu_version", ["2.10.0", "2.13.0"])
@pytest.mark.usefixtures("mode", "torch_npu_version", "grad_mode")
class TestCapture:
    """With version 2.0.0 of the extension and a torch_npu that takes handlers."""

    @pytest.mark.parametrize("overload", ["", "default"])
    def test_a_replay_has_the_new_lengths(self, fake_torch_npu: Any, overload: str) -> None:
        operator = fake_torch_npu.npu_fused_infer_attention_score
        operator = getattr(operator, overload) if overload else operator
        expected = [attend(lengths, operator)[0] for lengths in ([3, 3], [5, 2])]
        assert not same_bits(expected[0], expected[1])
        with torch_npu.Graph() as graph:
            captured, lse = attend([3, 3], operator)
        assert same_bits(captured, expected[0])
        graph.replay(actual_seq_lengths_kv=[5, 2])
        assert same_bits(captured, expected[1])
        assert lse.numel() == 0
        assert torch_npu.native_calls == []

    def test_out_is_captured_as_it_is(self, fake_torch_npu: Any) -> None:
        expected = attend([5, 2], fake_torch_npu.npu_fused_infer_attention_score)[0]
        with torch_npu.Graph() as graph:
            captured = _attend_out([3, 3], fake_torch_npu)
        graph.replay(actual_seq_lengths_kv=[5, 2])
        assert same_bits(captured, expected)

    def test_without_the_handler_a_replay_would_be_stale(self, fake_torch_npu: Any) -> None:
        """What the tests above detect is there to be detected."""
        operator = fake_torch_npu.npu_fused_infer_attention_score
        torch_npu.handlers.clear()
        with torch_npu.Graph() as graph:
            captured = attend([3, 3], operator)[0]
        graph.replay(actual_seq_lengths_kv=[5, 2])
        assert not same_bits(captured, attend([5, 2], operator)[0])


@pytest.mark.usefixtures("installed_extension")
def test_the_handler_is_registered_once(
    npu_ops: Any, fake_torch_npu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = fake_torch_npu.npu.register_npu_graph_handler
    registered: list[list[str]] = []

    def spy(names: list[str]) -> Any:
        registered.append(names)
        return register(names)

    monkeypatch.setattr(fake_torch_npu.npu, "register_npu_graph_handler", spy)
    for _ in range(3):
        library = npu_ops.enable()
        npu_ops.disable()
        library._destroy()
    assert registered == [[DEFAULT, OUT]]


@pytest.mark.parametrize(
    ("extension_version", "torch_npu_version", "supported"),
    [
        ("1.0.0", "2.8.0.post2", False),
        ("1.0.0", "2.10.0", False),
        ("2.0.0", "2.8.0.post2", False),
        ("2.0.0", "2.10.0", True),
    ],
)
@pytest.mark.usefixtures("installed_extension", "extension_version", "torch_npu_version")
def test_both_packages_must_offer_it(npu_ops: Any, supported: bool) -> None:
    assert npu_ops.graph_capture_supported() is supported
    npu_ops.enable()
    assert {*torch_npu.handlers} == ({DEFAULT, OUT} if supported else set())


@pytest.mark.parametrize("missing", ["NpuGraphOpHandler", "register_npu_graph_handler"])
@pytest.mark.usefixtures("installed_extension")
def test_half_of_the_interface_is_none(npu_ops: Any, fake_torch_npu: Any, missing: str) -> None:
    delattr(fake_torch_npu.npu, missing)
    assert not npu_ops.graph_capture_supported()
    npu_ops.enable()
    assert torch_npu.handlers == {}


def test_no_extension_is_no_support(npu_ops: Any) -> None:
    extension.uninstall()
    assert not npu_ops.graph_capture_supported()
