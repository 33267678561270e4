"""The simulated NPU is at least as strict as the device, so that a test on it can fail."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator import device, extension, schemas, torch_npu
from tests.simulator import refresh


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    device.install()
    torch_npu.install()
    extension.install()
    yield
    extension.uninstall()
    torch_npu.uninstall()


@pytest.fixture(params=[torch.no_grad, torch.inference_mode, torch.enable_grad], autouse=True)
def grad_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


def _npu(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return device.npu(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype))


class TestDevice:
    """Tensors behave as a device's do."""

    def test_layout_and_views_are_kept(self) -> None:
        tensor = _npu(3, 4)
        view = tensor.t()[1:, ::2]
        assert (view.shape, view.stride(), view.storage_offset()) == ((3, 2), (1, 8), 1)
        assert not view.is_contiguous()
        view.fill_(0)
        assert device.cpu(tensor).tolist() == [[1, 0, 0, 0], [5, 6, 7, 8], [9, 0, 0, 0]]

    def test_memory_is_shared_with_the_cpu_tensor(self) -> None:
        host = torch.zeros(2)
        device.npu(host).add_(1)
        assert host.tolist() == [1, 1]

    def test_copies_in_all_directions(self) -> None:
        tensor = _npu(2, 2)
        assert tensor.to("cpu").device.type == "cpu"
        assert torch.equal(tensor.cpu().to("npu").cpu(), device.cpu(tensor))
        tensor[:1] = torch.zeros(1, 2)
        assert tensor.tolist() == [[0, 0], [3, 4]]
        assert tensor.clone().data_ptr() != tensor.data_ptr()
        assert copy.copy(tensor).data_ptr() == tensor.data_ptr()

    def test_in_place_and_out_give_the_same_tensor_back(self) -> None:
        tensor, out = _npu(2, 2), torch.empty(0, device="npu")
        assert tensor.add_(1) is tensor
        assert torch.add(tensor, tensor, out=out) is out
        assert out.shape == (2, 2)
        assert torch.equal(device.cpu(out), device.cpu(tensor) * 2)

    def test_parameters_modules_and_printing(self) -> None:
        layer = torch.nn.Linear(4, 2).to("npu")
        layer.weight.data = _npu(2, 4)
        assert layer(_npu(3, 4)).shape == (3, 2)
        assert "device='npu:0'" in repr(layer.weight)

    def test_what_is_made_on_the_cpu_does_not_mix_with_what_is_not(self) -> None:
        with pytest.raises(RuntimeError, match="on the same device"):
            _npu(2) + torch.ones(2)
        assert (_npu(2) + torch.tensor(1.0)).tolist() == [2, 3]

    def test_a_cpu_tensor_is_not_taken_for_one_of_the_npu(self) -> None:
        with pytest.raises(TypeError, match="not an npu tensor"):
            device.cpu(torch.ones(2))

    @pytest.mark.parametrize(
        ("run", "expected"),
        [
            (lambda x: x % 2, [1, 0, 1]),
            (lambda x: torch.fmod(x, 2), [1, 0, 1]),
            (lambda x: x & 1, [1, 0, 1]),
            (lambda x: torch.bitwise_or(x, 4), [5, 6, 7]),
            (lambda x: x % 1.5, [1.0, 0.5, 0.0]),
            (lambda x: torch.remainder(7, x), [0, 1, 1]),
        ],
    )
    def test_numbers_are_taken_for_tensors(self, run: Any, expected: list[float]) -> None:
        tensor = _npu(3, dtype=torch.int32)
        result = run(tensor)
        assert result.tolist() == expected
        assert result.dtype == run(device.cpu(tensor)).dtype
        scalar = tensor[2]
        assert run(scalar).dtype == run(device.cpu(scalar)).dtype

    def test_what_asks_for_pinned_memory_gets_memory(self) -> None:
        tensor = _npu(2)
        there = tensor.to("cpu", non_blocking=True)
        assert (there.device.type, there.tolist()) == ("cpu", [1, 2])
        assert tensor.to("cpu", torch.float64, non_blocking=True).dtype == torch.float64
        assert there.to("npu", non_blocking=True).tolist() == [1, 2]
        pinned = torch.tensor([1], pin_memory=True)
        assert (pinned.dtype, pinned.tolist()) == (torch.int64, [1])
        for make in (torch.empty, torch.zeros, torch.ones):
            assert make(2, 3, dtype=torch.int32, pin_memory=True).shape == (2, 3)
        assert torch.empty_strided((2, 2), (1, 2), pin_memory=True).stride() == (1, 2)
        assert torch.empty_like(there, pin_memory=True).shape == (2,)
        copied = there.pin_memory()
        assert torch.equal(copied, there)
        assert copied.data_ptr() != there.data_ptr()

    def test_last_bits_tell_the_batch(self) -> None:
        row = torch.rand(64)
        seen = [device.in_last_bits(row, batch) for batch in range(1, 9)]
        assert torch.equal(seen[0], row)
        assert len({tuple(bits.tolist()) for bits in seen}) == 8
        for batch in (9, 100, 4096):
            assert all(not torch.equal(device.in_last_bits(row, batch), bits) for bits in seen)
        torch.testing.assert_close(device.in_last_bits(row, 8), row)


def _indices(rows: torch.Tensor, count: int) -> torch.Tensor:
    return torch.full((rows.shape[0], count), 5, device="npu")


REDUCTIONS = {
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x.norm(dim=-1),
    "var": lambda x: x.var(-1),
    "prod": lambda x: x.prod(-1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (64,)),
    "in place": lambda x: x.clone().cumsum_(-1),
    "out": lambda x: torch.sum(x, -1, out=torch.empty(x.shape[:-1], device="npu")),
    "scatter_add": lambda x: x.scatter_add(-1, _indices(x, 2), x.flip(-1)),
}
EXACT = {
    "add": lambda x: x + x,
    "exp": lambda x: x.exp(),
    "sort": lambda x: x.sort(-1).values,
    "max": lambda x: x.amax(-1),
    "where": lambda x: x.masked_fill(x > 0, 1.0),
    "gather": lambda x: x.gather(-1, x.argsort(-1)),
    "scatter_add of one index a row": lambda x: x.scatter_add(-1, _indices(x, 1), x.flip(-1)),
    "the same in place": lambda x: x.clone().scatter_add_(-1, _indices(x, 1), x.flip(-1)),
}


def _row_alone_and_among(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.rand(3, 64, generator=torch.Generator().manual_seed(0)) + 0.5
    return device.cpu(run(device.npu(rows[:1].clone())))[0], device.cpu(run(device.npu(rows)))[0]


class TestAdversary:
    """On an adversarial device every reduction shows the size of its batch."""

    @pytest.mark.parametrize("name", REDUCTIONS)
    def test_a_reduction_depends_on_the_batch(self, name: str) -> None:
        assert torch.equal(*_row_alone_and_among(REDUCTIONS[name]))
        with device.adversarial():
            alone, among = _row_alone_and_among(REDUCTIONS[name])
        assert not torch.equal(alone, among)
        torch.testing.assert_close(alone, among)

    @pytest.mark.parametrize("name", EXACT)
    def test_what_adds_nothing_up_does_not(self, name: str) -> None:
        with device.adversarial():
            assert torch.equal(*_row_alone_and_among(EXACT[name]))

    @pytest.mark.parametrize("name", ["npu_gemma_rms_norm", "npu_rms_norm"])
    def test_only_the_norm_that_is_row_by_row_hides_the_batch(self, name: str) -> None:
        fake: Any = torch_npu.install(schemas.DEFAULT, **torch_npu.LAYER_KERNELS)
        operator = getattr(fake, name)
        alone, among = _row_alone_and_among(lambda x: operator(x, _npu(64))[0])
        assert torch.equal(alone, among) is (name in torch_npu.ROW_BY_ROW)

    def test_observers_are_told_what_runs(self) -> None:
        seen: list[str] = []

        def observe(name: str, args: Any, kwargs: Any, result: Any) -> None:
            assert isinstance(result, torch.Tensor)
            seen.append(name)

        with device.observed(observe):
            torch.mm(_npu(2, 3), _npu(3, 2)).add_(1)
            torch.ops.batch_invariant_ops.npu_mm_batch_invariant(_npu(2, 3), _npu(3, 2))
        _npu(2).add_(1)
        expected = ["mm", "add", "npu_mm_batch_invariant"]
        assert [name for name in map(device.plain_name, seen) if name in expected] == expected


PAGED = {"num_kv_heads": 2, "num_heads": 2, "scale_value": 0.5}


class TestPagedAttention:
    """The attention that nothing replaces computes what the fused one does."""

    @pytest.mark.parametrize("tokens", [1, 3])
    def test_it_is_attention(self, tokens: int) -> None:
        fake: Any = torch_npu.install(schemas.DEFAULT, **torch_npu.LAYER_KERNELS)
        keys, values = (torch.randn(2, 4, 2, 8) for _ in range(2))
        query = torch.randn(tokens, 2, 8)
        table = torch.tensor([[1, 0]], dtype=torch.int32)
        out = torch.empty(tokens, 2, 8, device="npu")
        lengths = {"context_lens": torch.tensor([5], dtype=torch.int32)}
        given = [device.npu(query), device.npu(keys), device.npu(values)]
        if tokens == 1:
            fake._npu_paged_attention(
                *given, block_table=device.npu(table), out=out, **PAGED, **lengths
            )
        else:
            lengths["seq_len"] = torch.tensor([tokens], dtype=torch.int32)
            fake._npu_flash_attention_qlens(
                *given, block_table=device.npu(table), mask=_npu(1), out=out, **PAGED, **lengths
            )
        expected, _ = fake.npu_fused_infer_attention_score(
            device.npu(query),
            *(device.npu(cache.flatten(2)) for cache in (keys, values)),
            num_heads=2,
            scale=0.5,
            input_layout="TND",
            actual_seq_lengths=[tokens],
            actual_seq_lengths_kv=[5],
            block_table=device.npu(table),
            block_size=4,
            sparse_mode=3,
        )
        assert torch.equal(device.cpu(out), device.cpu(expected))


MM = "npu_mm_batch_invariant"
MEAN = "npu_reduce_mean_batch_invariant"
LOG_SOFTMAX = "npu_log_softmax_batch_invariant"


class TestExtension:
    """The kernels refuse all that is not said to be taken."""

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            (MM, lambda: (_npu(2, 3, 4), _npu(4, 2))),
            (MM, lambda: (_npu(3, 4), _npu(2, 4).t())),
            (MM, lambda: (_npu(3, 4).double(), _npu(4, 2).double())),
            (MM, lambda: (_npu(3, 4).int(), _npu(4, 2).int())),
            (MM, lambda: (_npu(3, 4), _npu(4, 2).half())),
            (MM, lambda: (_npu(0, 4), _npu(4, 2))),
            (MM, lambda: (_npu(3, 4), _npu(3, 4))),
            (MEAN, lambda: (_npu(3, 4), 0)),
            (MEAN, lambda: (_npu(4, 3).t(), 1)),
            (MEAN, lambda: (_npu(3, 4).long(), 1)),
            (LOG_SOFTMAX, lambda: (_npu(3, 4), 0)),
            (LOG_SOFTMAX, lambda: (_npu(4, 3).t(), 1)),
            ("npu_matmul_batch_invariant", lambda: (_npu(2, 3, 4), _npu(4, 2))),
            ("npu_matmul_batch_invariant", lambda: (_npu(1, 3, 4), _npu(2, 4, 2))),
        ],
    )
    def test_refused(self, name: str, arguments: Any) -> None:
        with pytest.raises(RuntimeError, match="do not take"):
            getattr(torch.ops.batch_invariant_ops, name)(*arguments())

    def test_versions(self) -> None:
        name = "npu_fused_infer_attention_score_batch_invariant"
        assert getattr(torch.ops.batch_invariant_ops, name).overloads() == ["default", "out"]
        extension.install("1.0.0")
        assert getattr(torch.ops.batch_invariant_ops, name).overloads() == ["default"]
        assert not hasattr(torch.ops.batch_invariant_ops, f"_{name}_get_max_workspace")
        extension.uninstall()
        assert not hasattr(torch.ops.batch_invariant_ops, name)

    def test_calls_are_recorded(self) -> None:
        tensor = _npu(3, 4)
        torch.ops.batch_invariant_ops.npu_log_softmax_batch_invariant(tensor, dim=-1)
        (call,) = extension.called(LOG_SOFTMAX)
        assert call.args[0].data_ptr() == tensor.data_ptr()


class TestWiderExtension:
    """Without the limits that are only assumed, strides, axes and ranks are aten's."""

    @pytest.fixture(autouse=True)
    def wide(self, installed: None) -> None:
        extension.install(narrow=False)

    @pytest.mark.parametrize(
        ("a", "b"),
        [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (1, 3, 4)), ((6, 5, 2, 3), (3, 4))],
    )
    def test_products_of_any_rank(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        left, right = _npu(*a), _npu(*b).transpose(-1, -2).contiguous().transpose(-1, -2)
        result = torch.ops.batch_invariant_ops.npu_matmul_batch_invariant(left, right)
        expected = device.cpu(left) @ device.cpu(right)
        torch.testing.assert_close(device.cpu(result), expected)

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_reductions_over_any_axis(self, dim: int) -> None:
        tensor = _npu(3, 4, 5)
        host = device.cpu(tensor)
        operators = torch.ops.batch_invariant_ops
        for keepdim in (False, True):
            mean = operators.npu_reduce_mean_batch_invariant(tensor, dim, keepdim)
            torch.testing.assert_close(device.cpu(mean), host.mean(dim, keepdim))
        logs = operators.npu_log_softmax_batch_invariant(tensor, dim)
        torch.testing.assert_close(device.cpu(logs), host.log_softmax(dim))


class TestTorchNpu:
    """Operators are the real ones by schema and by what they compute."""

    @pytest.mark.parametrize("version", refresh.VERSIONS)
    def test_the_schemas_are_the_wheels(self, version: str) -> None:
        fake: Any = torch_npu.install(version)
        real = refresh.observed(version)
        assert schemas.of(version) == real["schemas"]
        assert schemas.operators(version) == {*real["operators"]}
        assert schemas.has_graph_handlers(version) == real["graph_handlers"]
        assert hasattr(fake.npu, "register_npu_graph_handler") == real["graph_handlers"]
        schema = torch.ops.npu.npu_fused_infer_attention_score.out._schema
        assert str(schema) == "npu::" + str(
            torch._C.parse_schema(real["schemas"]["npu_fused_infer_attention_score.out"])
        )

    def test_the_versions_are_those_kept(self) -> None:
        assert schemas.versions() == refresh.VERSIONS
        assert schemas.DEFAULT in refresh.VERSIONS
        assert schemas.has_graph_handlers(schemas.DEFAULT)
        assert not schemas.has_graph_handlers("2.8.0.post2")

    def test_rebinding_one_namespace_leaves_the_other(self) -> None:
        fake: Any = torch_npu.install()
        native = torch.ops.npu.npu_rms_norm
        fake.npu_rms_norm = None
        assert torch.ops.npu.npu_rms_norm is native

    def test_another_operator_of_the_wheel(self) -> None:
        fake: Any = torch_npu.install(npu_swiglu=lambda tensor, dim=-1: tensor)
        assert fake.npu_swiglu(_npu(2)).tolist() == [1, 2]

    def test_attention_is_attention(self) -> None:
        query, keys, values = (torch.randn(2, tokens, 4, 8) for tokens in (3, 5, 5))
        result, _ = torch.ops.npu.npu_fused_infer_attention_score(
            *map(device.npu, (query, keys, values)), num_heads=4, scale=0.4, input_layout="BSND"
        )
        q, k, v = (t.transpose(1, 2) for t in (query, keys, values))
        scores = (q @ k.transpose(2, 3) * 0.4).softmax(-1)
        expected = (scores @ v).transpose(1, 2)
        torch.testing.assert_close(device.cpu(result), expected, rtol=1e-4, atol=1e-5)

    def test_a_paged_cache_is_the_dense_one(self) -> None:
        query, keys = torch.randn(3, 2, 8), torch.randn(5, 2, 8)
        dense, _ = torch.ops.npu.npu_fused_infer_attention_score(
            *map(device.npu, (query, keys, keys)),
            num_heads=2,
            input_layout="TND",
            actual_seq_lengths=[3],
            actual_seq_lengths_kv=[5],
            sparse_mode=3,
        )
        cache = torch.zeros(4, 2, 16)
        cache[[3, 0]] = keys[:4].reshape(2, 2, 16)
        cache[2, 0] = keys[4].flatten()
        paged, _ = torch.ops.npu.npu_fused_infer_attention_score(
            *map(device.npu, (query, cache, cache)),
            num_heads=2,
            input_layout="TND",
            actual_seq_lengths=[3],
            actual_seq_lengths_kv=[5],
            sparse_mode=3,
            block_table=device.npu(torch.tensor([[3, 0, 2]], dtype=torch.int32)),
            block_size=2,
        )
        assert torch.equal(device.cpu(paged), device.cpu(dense))

    def test_an_option_it_does_not_know_is_refused(self) -> None:
        with pytest.raises(NotImplementedError, match="pse_shift"):
            torch.ops.npu.npu_fused_infer_attention_score(
                _npu(1, 1, 8), _npu(1, 2, 8), _npu(1, 2, 8), pse_shift=_npu(1)
            )

    def test_top_p_works_on_what_top_k_kept(self) -> None:
        logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
        k = device.npu(torch.tensor([2], dtype=torch.int32))
        # Of all four, 0.4 + 0.3 reaches 0.6 with the second; of the two kept, 4/7 falls short.
        for p, kept in ((0.5, 1), (0.6, 2)):
            result = torch.ops.npu.npu_top_k_top_p(
                device.npu(logits), device.npu(torch.tensor([p])), k
            )
            assert int(device.cpu(result).isfinite().sum()) == kept
            assert torch.equal(device.cpu(result)[0, :kept], logits[0, :kept])

    def test_the_largest_is_always_kept(self) -> None:
        zero = device.npu(torch.zeros(1))
        result = torch.ops.npu.npu_top_k_top_p(_npu(1, 4), zero)
        assert device.cpu(result).tolist() == [[-torch.inf, -torch.inf, -torch.inf, 4.0]]

    @pytest.mark.parametrize(
        ("p", "k"),
        [
            (None, None),
            (torch.ones(1, dtype=torch.bfloat16), None),
            (None, torch.tensor([2])),
            (None, torch.tensor([0], dtype=torch.int32)),
            (None, torch.tensor([5], dtype=torch.int32)),
            (torch.ones(2), None),
        ],
    )
    def test_thresholds_that_the_operator_does_not_take(
        self, p: torch.Tensor | None, k: torch.Tensor | None
    ) -> None:
        given = [None if t is None else device.npu(t) for t in (p, k)]
        with pytest.raises(RuntimeError, match="npu_top_k_top_p"):
            torch.ops.npu.npu_top_k_top_p(_npu(1, 4), *given)
