"""The operators of experts and of MLA compute what their names say, and say what they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import (
    acl,
    attention,
    dense,
    device,
    experts,
    latent,
    schemas,
    sgl_kernel_npu,
    torch_npu,
    uncovered,
)
from sgl_npu_patch.simulator.device import cpu, npu

EXPERTS, CHOSEN, WIDTH, ROWS = 4, 2, 8, 5


@pytest.fixture(autouse=True)
def fake() -> Iterator[Any]:
    device.install()
    kernels = {**dense.KERNELS, **experts.KERNELS, **latent.KERNELS}
    torch.manual_seed(0)
    yield torch_npu.install(schemas.DEFAULT, **kernels)
    torch_npu.uninstall()
    uncovered.noted.clear()


def layer(fake: Any, x: torch.Tensor, gate: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Run a layer of experts without an activation, as SGLang calls the operators."""
    logits = npu(x @ gate)
    weights, chosen, _ = fake.npu_moe_gating_top_k_softmax(logits, k=CHOSEN)
    rows, places, counts, _ = fake.npu_moe_init_routing_v2(
        npu(x),
        chosen,
        active_num=x.shape[0] * CHOSEN,
        expert_num=EXPERTS,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, EXPERTS],
        quant_mode=-1,
    )
    (product,) = fake.npu_grouped_matmul(
        x=[rows],
        weight=[npu(matrices)],
        split_item=2,
        group_list_type=1,
        group_type=0,
        group_list=counts,
        output_dtype=x.dtype,
    )
    result: torch.Tensor = fake.npu_moe_finalize_routing(
        product,
        skip1=None,
        skip2=None,
        bias=None,
        scales=weights,
        expanded_src_to_dst_row=places,
        export_for_source_row=chosen,
        drop_pad_mode=2,
    )
    return cpu(result)


def test_a_layer_of_experts(fake: Any) -> None:
    x, gate = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, EXPERTS)
    matrices = torch.randn(EXPERTS, WIDTH, WIDTH)
    weights, chosen = (x @ gate).softmax(-1).topk(CHOSEN)
    expected = torch.stack(
        [
            sum(w * (row @ matrices[e]) for w, e in zip(ws, es, strict=True))
            for row, ws, es in zip(x, weights, chosen, strict=True)
        ]
    )
    with uncovered.covered():
        found = layer(fake, x, gate, matrices)
        alone = layer(fake, x[:1], gate, matrices)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[:1], alone)
    assert not torch.equal(layer(fake, x, gate, matrices)[:1], layer(fake, x[:1], gate, matrices))
    assert uncovered.noted == {
        "npu_grouped_matmul, which nothing makes batch-invariant",
        "npu_moe_finalize_routing, which nothing makes batch-invariant",
    }


@pytest.mark.parametrize("norm_type", [0, 1])
def test_gating_with_a_bias(fake: Any, norm_type: int) -> None:
    logits, bias = torch.randn(ROWS, EXPERTS), torch.randn(EXPERTS)
    scores = logits.sigmoid() if norm_type else logits.softmax(-1)
    chosen = (scores + bias).topk(CHOSEN).indices
    expected = scores.gather(1, chosen)
    if norm_type:
        expected = expected / expected.sum(-1, keepdim=True)
    weights, found, _ = fake.npu_moe_gating_top_k(
        npu(logits), CHOSEN, bias=npu(bias), norm_type=norm_type, routed_scaling_factor=2.0
    )
    assert cpu(found).tolist() == chosen.tolist()
    torch.testing.assert_close(cpu(weights), 2 * expected)


def test_the_norm_of_weights() -> None:
    l1_norm: Any = sgl_kernel_npu.PARTS["sgl_kernel_npu.norm.l1_norm"]["l1_norm"]
    weights = torch.rand(ROWS, CHOSEN)
    expected = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(cpu(l1_norm(npu(weights))), expected)


def test_the_second_attention_is_the_first_under_other_names(fake: Any) -> None:
    query, key, value = (npu(torch.randn(1, 3, 2, WIDTH)) for _ in range(3))
    with uncovered.covered():
        second, _ = fake.npu_fused_infer_attention_score_v2(
            query, key, value, num_query_heads=2, softmax_scale=0.5, input_layout="BSND",
            actual_seq_qlen=[3], actual_seq_kvlen=[3],
        )  # fmt: skip
    first, _, _ = attention.attend(
        cpu(query), cpu(key), cpu(value), num_heads=2, scale=0.5, input_layout="BSND"
    )
    assert torch.equal(cpu(second), first)
    with pytest.raises(NotImplementedError, match="learnable_sink"):
        fake.npu_fused_infer_attention_score_v2(
            query, key, value, num_query_heads=2, input_layout="BSND", learnable_sink=query
        )


def test_attention_over_heads_whose_rotated_part_is_apart() -> None:
    wide = [torch.randn(1, 3, 2, WIDTH) for _ in range(2)]
    value = torch.randn(1, 3, 2, WIDTH)
    options: dict[str, Any] = {"num_heads": 2, "input_layout": "BSND"}
    (query, query_rope), (key, key_rope) = (torch.split(each, [6, 2], -1) for each in wide)
    apart = attention.attend(query, key, value, query_rope=query_rope, key_rope=key_rope, **options)
    assert torch.equal(apart[0], attention.attend(wide[0], wide[1], value, **options)[0])


def test_the_cache_of_latent_heads(fake: Any) -> None:
    latent_width, rotated = 6, 4
    kv = torch.randn(ROWS, 1, 1, latent_width + rotated)
    gamma = torch.rand(latent_width)
    angles = torch.rand(ROWS, rotated // 2)
    cos, sin = (
        npu(torch.cat((each, each), -1)[:, None, None]) for each in (angles.cos(), angles.sin())
    )
    caches = [npu(torch.zeros(2, 8, 1, width)) for width in (rotated, latent_width)]
    slots = torch.tensor([3, 4, 5, 9, 10])
    _, _, k_rope, kv_a = fake.npu_kv_rmsnorm_rope_cache(
        npu(kv), npu(gamma), cos, sin, npu(slots), *caches,
        epsilon=1e-6, cache_mode="PA_BNSD", is_output_kv=True,
    )  # fmt: skip
    expected = torch.nn.functional.rms_norm(kv[..., :latent_width], [latent_width], gamma, 1e-6)
    torch.testing.assert_close(cpu(kv_a), expected)
    pairs = torch.view_as_complex(kv[..., latent_width:].reshape(ROWS, -1, 2).contiguous())
    turned = pairs * torch.complex(angles.cos(), angles.sin())
    torch.testing.assert_close(cpu(k_rope).flatten(1), torch.cat((turned.real, turned.imag), -1))
    for cache, given in zip(caches, (k_rope, kv_a), strict=True):
        rows = cpu(cache).flatten(0, 2)
        assert torch.equal(rows[slots], cpu(given).flatten(1))
        assert int(rows.any(-1).sum()) == ROWS


def test_products_of_latent_heads(fake: Any) -> None:
    sgl_kernel_npu.install_operators()
    tokens, heads = torch.randn(ROWS, 2, WIDTH), torch.randn(2, WIDTH, 3)
    expected = torch.einsum("thw,hwv->thv", tokens, heads)
    out = npu(torch.empty(ROWS, 2, 3))
    with uncovered.covered():
        torch.ops.npu.batch_matmul_transpose(npu(tokens), npu(heads), out)
        found = fake.npu_transpose_batchmatmul(
            npu(tokens), npu(heads), perm_x1=[1, 0, 2], perm_y=[1, 0, 2]
        )
    torch.testing.assert_close(cpu(out), expected)
    torch.testing.assert_close(cpu(found), expected)


Call = Callable[[Any, torch.Tensor], object]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda fake, x: fake.npu_moe_gating_top_k(x, 2, group_count=2), "group_count"),
        (lambda fake, x: fake.npu_moe_gating_top_k_softmax(x, finished=x, k=1), "finished"),
        (lambda fake, x: fake.npu_grouped_matmul([x], [x], bias=[x], group_list=x), "bias"),
        (lambda fake, x: fake.npu_grouped_matmul([x], [x], scale=[x], group_list=x), "scale"),
        (lambda fake, x: fake.npu_moe_init_routing_v2(x, x, quant_mode=1), "quantised"),
        (
            lambda fake, x: fake.npu_moe_finalize_routing(x, None, None, None, x, x, x),
            "drop_pad_mode",
        ),
        (lambda fake, x: fake.npu_transpose_batchmatmul(x, x, scale=x), "scale"),
    ],
)
def test_what_is_not_simulated_is_refused(fake: Any, call: Call, said: str) -> None:
    with pytest.raises(NotImplementedError, match=f"takes no {said}="):
        call(fake, npu(torch.rand(ROWS, EXPERTS)))


def test_attention_follows_cuts_only_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys = torch.randn(1, 40, 1, WIDTH), torch.randn(1, 200, 1, WIDTH)

    def last(length: int) -> torch.Tensor:
        bits = lambda rows, queries, keys: uncovered.by_cut("it", rows, queries, keys)  # noqa: E731
        given = query[:, -length:]
        result, _, _ = attention.attend(
            given, keys, keys, bits=bits, num_heads=1, input_layout="BSND", sparse_mode=3
        )
        return result[0, -1]

    assert torch.equal(last(40), last(1))
    assert uncovered.noted == set()
    monkeypatch.setattr(uncovered, "_cutting", [None])
    assert not torch.equal(last(40), last(1))
    assert torch.equal(last(40), last(40))
    assert uncovered.noted == {"it, which is free to follow how a sequence is cut into calls"}
    with uncovered.covered():
        assert torch.equal(last(40), last(1))


def resize(tensor: torch.Tensor, size: int) -> Any:
    storage: Any = tensor.untyped_storage()
    return storage.resize_(size)


def test_memory_that_was_freed_cannot_be_read() -> None:
    tensor = npu(torch.ones(3))
    with pytest.raises(NotImplementedError, match="resizing device memory to 4 bytes"):
        resize(tensor, 4)
    resize(tensor, 0)
    with pytest.raises(RuntimeError, match="was freed"):
        cpu(tensor)
    assert resize(torch.ones(3), 0).nbytes() == 0


def test_the_architecture_is_that_of_a2() -> None:
    runtime: Any = acl.PARTS["acl"]["rt"]
    assert runtime.get_device_info(0, 601) == (2201, 0)
    with pytest.raises(NotImplementedError, match=r"^acl\.rt: attribute 1 is not"):
        runtime.get_device_info(0, 1)
    with pytest.raises(NotImplementedError, match=r"^acl\.rt\.malloc is not"):
        runtime.malloc(1)
