from __future__ import annotations

import pytest

from sgl_npu_patch.engine.errors import Unparsable
from tests.audit.trees import NORM, NPU, calls, found


@pytest.mark.parametrize(
    "source",
    [
        "torch.sum(seq_lens)",
        "lens.sum(-1)",
        "(x == y).sum()",
        "torch.cumsum(forward_batch.extend_seq_lens, dim=0)",
        "x.cumsum(0, dtype=torch.int32)",
        "np.sum(x)",
        "math.prod(x)",
        "F.sum(x)",
        "def process_weights_after_loading(self):\n    torch.sum(self.weight)",
        "def f():\n    torch.multinomial(p, 1, generator=g)",
        "torch.distributed.all_reduce(x, op=torch.distributed.ReduceOp.MIN)",
        "@torch.compile(dynamic=True, disable=_is_npu)\ndef f():\n    pass",
        "torch.matmul(x, y)",
        "x @ y",
        "torch_npu.npu_rms_norm(x)",
        "torch_npu.npu_add_rms_norm(x, y)",
        "torch.npu.current_stream().synchronize()",
        "torch_npu.profiler.profile()",
        "y = torch.float16",
        "torch.zeros(3).to(torch.bfloat16)",
        "torch.ops.batch_invariant_ops.npu_mm_batch_invariant(x, y)",
        "if _is_cuda:\n    torch.sum(x)",
    ],
)
def test_nothing_is_found_in(source: str) -> None:
    assert found(source) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("torch.sum(x, keepdim=True)", "torch.sum"),
        ("(x * weights).sum(1)", "Tensor.sum"),
        ("torch.cumsum(probs, -1)", "torch.cumsum"),
        ("probs[token_ids].sum()", "Tensor.sum"),
        ("torch.bmm(x, y)", "torch.bmm"),
        ("torch.nn.functional.linear(x, w, b)", "torch.nn.functional.linear with bias"),
        ("torch.nn.functional.linear(x, w, bias=b)", "torch.nn.functional.linear with bias"),
        ("torch.compile(f)", "torch.compile"),
        ("torch.distributed.all_reduce(x)", "torch.distributed.all_reduce"),
        ("from torch import sum as add\nadd(x)", "torch.sum"),
        ("torch_npu.npu_new(x)", "torch_npu.npu_new"),
        ("f = torch_npu.npu_new\nf(x)", "torch_npu.npu_new"),
        ("g(torch_npu.npu_new)", "torch_npu.npu_new"),
        ("from sgl_kernel_npu.a.b import c\nc(x)", "sgl_kernel_npu.a.b.c"),
    ],
)
def test_a_finding(source: str, name: str) -> None:
    assert found(source) == [name]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("torch.mm(x, y, out=z)", "torch.mm"),
        ("torch.mm(x, y, out_dtype=torch.float32)", "torch.mm"),
        ("torch.mm(x, y, out_dtype=torch.float32, out=z)", "torch.mm"),
        ("torch.baddbmm(z, x, y)", "torch.baddbmm"),
        ("z.addmm_(x, y)", "Tensor.addmm_"),
        ("x.mv(y)", "Tensor.mv"),
        ("torch.mean(x, -1, out=z)", "torch.mean"),
        ("torch.log_softmax(x, -1, out=z)", "torch.log_softmax"),
    ],
)
def test_an_overload_that_the_mode_does_not_register_is_native(source: str, name: str) -> None:
    """This tree's mode registers what SGLang's own did, without any overload of it."""
    assert found(source) == [name]


@pytest.mark.parametrize("source", ["torch.nn.functional.linear(x, w)", "F.linear(x, w, None)"])
def test_a_linear_layer_without_bias_is_replaced(source: str) -> None:
    (call,) = calls({NPU: f"import torch\nimport torch.nn.functional as F\n{source}\n"})
    assert (call.name, call.verdict) == ("torch.nn.functional.linear", "replaced")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("torch.sum(x)", []),
        ("torch.other(x)", []),
        ("torch.ops.sgl_kernel.fused(x)", []),
        ("torch_npu.npu_new(x)", ["torch_npu.npu_new"]),
        ("torch.multinomial(probs, 1)", ["torch.multinomial"]),
        ("torch.addmm(b, x, y)", ["torch.addmm"]),
        ("if _is_npu:\n    torch.sum(x)", ["torch.sum"]),
        ("def forward_npu(x):\n    return torch.other(x)", ["torch.other"]),
        ("def forward_cuda(x):\n    return torch.multinomial(x, 1)", []),
    ],
)
def test_in_a_file_of_all_devices(source: str, names: list[str]) -> None:
    assert found(source, NORM) == names


def test_functions_without_a_word_of_the_npu_do_not_hide_the_others() -> None:
    source = (
        "class A:\n    @property\n    def f(self):\n        return 1\n\n"
        '    def g(\n        self,\n    ):\n        """A\n\nB."""\n        return 2\n\n'
        "    def forward_npu(self, x):\n        return torch.sum(x)\n\n\n"
        "@decorated(\n    1\n)\ndef h():\n    pass\n"
    )
    (call,) = (c for c in calls({NORM: f"import torch\n{source}"}) if not c.covered)
    assert (call.site.line, call.site.symbol) == (16, "A.forward_npu")


def test_all_of_the_syntax_is_walked() -> None:
    source = (
        "match x.dtype:\n    case torch.float16 if torch.sum(x):\n        torch.bmm(x, x)\n"
        "f = lambda y=torch.norm(x): [torch.softmax(z, 1) for z in y]\n"
        "async def g():\n    async with torch.prod(x) as w:\n        yield f'{torch.einsum(w)}'\n"
    )
    assert found(source) == [
        "torch.sum", "torch.bmm", "torch.norm", "torch.softmax", "torch.prod", "torch.einsum",
    ]  # fmt: skip


def test_an_expression_that_is_too_deep_is_refused() -> None:
    with pytest.raises(Unparsable):
        found("x = " + "+".join(["torch.zeros(1)"] * 2000))


@pytest.mark.parametrize(
    "source",
    [
        "class AscendHead:\n    def f(self, x):\n        return torch.sum(x)",
        "if _is_npu:\n    def f(x):\n        return torch.sum(x)",
        "if not _is_npu:\n    f = None\nelse:\n    def f(x):\n        return torch.sum(x)",
        "if x:\n    f = None\nelif _is_npu:\n\n    def f(x):\n        return torch.sum(x)",
    ],
)
def test_what_a_class_or_a_test_is_about(source: str) -> None:
    assert found(f"_is_npu = is_npu()\n{source}", NORM) == ["torch.sum"]


def test_clients_and_other_devices_are_not_on_the_path() -> None:
    source = "import torch_npu\n\ntorch_npu.npu_new(torch.zeros(1))\n"
    assert not calls({"multimodal_gen/npu.py": source, "bench_npu.py": source})
    assert not calls({"srt/layers/flashinfer_backend.py": source})


def test_a_module_that_only_the_npu_path_imports() -> None:
    helper = {"srt/layers/helpers.py": "import torch\n\ndef f(x):\n    return torch.sum(x)\n"}
    importer = "import torch\nif _is_npu:\n    from sglang.srt.layers.helpers import f\n"
    assert [c.name for c in calls({**helper, NORM: importer}) if not c.covered] == ["torch.sum"]
    torch_npu = {"srt/layers/helpers.py": f"import torch_npu\n{helper['srt/layers/helpers.py']}"}
    assert [c.name for c in calls({**torch_npu, NORM: importer}) if not c.covered] == ["torch.sum"]
    both = f"{importer}\ndef g():\n    from sglang.srt.layers.helpers import f\n"
    assert not [c for c in calls({**helper, NORM: both}) if not c.covered]
    other = {"srt/models/a.py": "from sglang.srt.layers.helpers import f\n"}
    assert not [c for c in calls({**helper, NORM: importer, **other}) if not c.covered]


@pytest.mark.parametrize(
    "source",
    [
        "from torch_npu import npu_add_rms_norm",
        "if _is_npu:\n    from torch_npu import npu_add_rms_norm as norm",
        "norm = torch_npu.npu_add_rms_norm",
        "norms = {1: torch_npu.npu_add_rms_norm}",
    ],
)
def test_an_operator_taken_by_value_stays_native(source: str) -> None:
    (call,) = (c for c in calls({NPU: f"import torch\n{source}\n"}) if c.kind == "by-value")
    assert (call.name, call.verdict) == ("torch_npu.npu_add_rms_norm", "native")


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    from torch_npu import npu_add_rms_norm",
        "def f():\n    norm = torch_npu.npu_add_rms_norm",
        "from torch_npu import npu_rms_norm",
        "import torch_npu",
    ],
)
def test_what_is_taken_when_it_runs_is_the_replacement(source: str) -> None:
    assert not [c for c in calls({NPU: f"import torch\n{source}\n"}) if c.kind == "by-value"]


def test_draws_of_the_sampler_beside_the_seeded_one() -> None:
    seeded = (
        "import torch\n\ndef draw(p):\n    if seeds:\n        return multinomial_with_seed(p)\n"
    )
    plain = "    return torch.multinomial(p, 1)\n"
    path = "srt/layers/sampler.py"
    assert not [c for c in calls({path: seeded + plain}) if not c.covered]
    assert [c.name for c in calls({path: f"import torch\n\ndef draw(p):\n{plain}"})] == [
        "torch.multinomial"
    ]
