"""Calls of NPU operators are compared with what a real torch_npu takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  # the values below are evaluated
import pytest
import torch

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify import contracts, replacements, torch_npu_wheel
from sgl_npu_patch.verify.npu_calls import find_uses, kinds_of
from sgl_npu_patch.verify.schema import parse
from sgl_npu_patch.verify.torch_npu_wheel import TorchNpu

OLDEST, NEWEST = "2.6.0", "2.14.0"
ATTENTION, NORM = "npu_fused_infer_attention_score", "npu_add_rms_norm"
WORKSPACE = f"_{ATTENTION}_get_max_workspace"
NPU_OPS = Path(__file__).parents[2] / "npu_ops" / "npu_ops.py"

_ATTENTION = 'Tensor query, Tensor key, *, SymInt[]? lengths=None, int heads=1, str layout="BSH"'
SCHEMAS = (
    "npu_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    f"npu_attention({_ATTENTION}) -> (Tensor, Tensor)",
    f"npu_attention.out({_ATTENTION}, Tensor? workspace=None, Tensor[] out) -> (Tensor, Tensor)",
    "npu_paged(Tensor input) -> Tensor",
    "npu_sum(Tensor input, int[1]? dim=None, int[] shape=[]) -> Tensor",
)
OFFERED = TorchNpu(
    "9.9",
    {text.partition("(")[0]: text for text in SCHEMAS},
    True,
    ("npu_paged",),
    ("npu_cut_into_pieces",),
)


HELD_BY_AN_ATTRIBUTE = """
class A:
    def __init__(self):
        self.op = torch.ops.npu.npu_norm

    def f(self, x):
        return self.op(x)
"""


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> TorchNpu:
    monkeypatch.setattr(contracts, "read", lambda given: OFFERED)
    return OFFERED


def judge(folder: Path, source: str) -> list[Result]:
    package = folder / "sglang"
    path = package / contracts.FOLDER / "attention" / "ascend_backend.py"
    path.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    path.write_text(source)
    return contracts.check(open_directory(folder, PROJECT), "9.9")


def verdict(folder: Path, source: str) -> tuple[str, str, str]:
    (result,) = judge(folder, f"import numpy as np\nimport torch\nimport torch_npu\n{source}\n")
    return result.id.removeprefix("contract."), result.verdict, result.found or result.message


@pytest.mark.usefixtures("offered")
class TestCalls:
    @pytest.mark.parametrize(
        "call",
        [
            "torch.ops.npu.npu_norm(x, y, 1e-6)",
            "torch.ops.npu.npu_norm.default(x, y, epsilon=1)",
            "torch_npu.npu_norm(input=x, gamma=y)",
            "torch_npu.npu_attention(q, k, lengths=[1, 2], heads=4, layout='TND')",
            "torch_npu.npu_attention(q, k, lengths=x.tolist())",
            "torch_npu.npu_attention(q, k, lengths=np.arange(1, 5))",
            "torch_npu.npu_attention(q, k, lengths=np.array(x).cumsum())",
            "torch_npu.npu_attention(q, k, lengths=torch.cumsum(x, dim=0))",
            "torch_npu.npu_attention(q, k, lengths=None)",
            "torch_npu.npu_attention(q, k, workspace=w, out=[a, b])",
            "torch_npu.npu_attention.out(q, k, workspace=None, out=[a, b])",
            "torch_npu.npu_sum(x, 1)",
            "torch_npu.npu_paged(x)",
            "torch_npu.atb.npu_paged(x)",
            "torch.ops.atb.npu_paged(x)",
            "op = torch.ops.npu.npu_norm\nop(x, y)",
            "op = torch_npu.npu_attention.out\nop(q, k, out=[a])",
            "op = torch_npu.npu_attention\nop.out(q, k, out=[a])",
            "from torch_npu import npu_norm as norm\nnorm(x, y)",
            "import torch_npu as device\ndevice.npu_norm(x, y)",
            "ops = torch.ops.npu\nops.npu_norm(x, y)",
            "getattr(torch.ops.npu, 'npu_norm')(x, y)",
            "def f(x, eps=1):\n    lengths = [1]\n    return torch_npu.npu_norm(x, x, eps)",
        ],
    )
    def test_taken(self, tmp_path: Path, call: str) -> None:
        assert verdict(tmp_path, call)[1] == "pass"

    @pytest.mark.parametrize(
        ("call", "found"),
        [
            ("torch.ops.npu.npu_norm(x)", "gamma is missing"),
            ("torch.ops.npu.npu_norm(x, y, 1e-6, 2)", "takes 3 arguments by place, 4 given"),
            ("torch.ops.npu.npu_norm(x, y, eps=1e-6)", "has no argument eps"),
            ("torch.ops.npu.npu_norm(x, y, gamma=y)", "gamma is given twice"),
            ("torch.ops.npu.npu_norm(x, y, '1e-6')", "float epsilon takes no str"),
            ("torch.ops.npu.npu_norm(x, y, None)", "float epsilon takes no None"),
            ("torch_npu.npu_attention(q, k, v)", "takes 2 arguments by place, 3 given"),
            ("torch_npu.npu_attention(q, k, lengths=4)", "SymInt[]? lengths takes no int"),
            ("torch_npu.npu_attention(q, k, lengths=[1.0])", "SymInt[]? lengths takes no [float]"),
            ("torch_npu.npu_attention(q, k, lengths=np.zeros(4))", "lengths takes no floats"),
            ("torch_npu.npu_attention(q, k, heads=[4])", "int heads takes no [int]"),
            ("torch_npu.npu_attention(q, k, heads=0.5)", "int heads takes no float"),
            ("torch_npu.npu_attention(q, k, layout=3)", "str layout takes no int"),
            ("torch_npu.npu_attention(q, [k])", "Tensor key takes no"),
            ("torch_npu.npu_attention.out(q, k, workspace=w)", "out is missing"),
            ("torch_npu.npu_attention.default(q, k, out=[a])", "has no argument out"),
            ("torch_npu.npu_norm.out(x, y)", "no overload out"),
            ("torch_npu.npu_sum(x, shape=torch.ones(2))", "int[] shape takes no tensor"),
            ("op = torch.ops.npu.npu_norm\nop(x)", "gamma is missing"),
            ("lengths = 3\ntorch_npu.npu_attention(q, k, lengths=lengths)", "takes no int"),
            ("torch.ops.npu.npu_norm(*x, eps=1)", "has no argument eps"),
            ("torch.ops.npu.npu_paged(x)", "it is an operator of torch.ops.atb"),
            ("torch.ops.atb.npu_norm(x, y)", "it is an operator of torch.ops.npu"),
            ("torch_npu.npu_missing(x)", "no such operator"),
            ("if torch_npu.version > 2:\n    torch_npu.npu_missing(x)", "no such operator"),
            ("if not hasattr(torch_npu, 'npu_missing'):\n    torch_npu.npu_missing(x)", "no such"),
            ("if hasattr(torch_npu, 'npu_norm'):\n    torch_npu.npu_missing(x)", "no such"),
            ("try:\n    pass\nexcept Exception:\n    torch_npu.npu_missing(x)", "no such"),
            ("try:\n    torch_npu.npu_missing(x)\nexcept KeyError:\n    pass", "no such"),
            ("from torch_npu import npu_missing\nnpu_missing(x)", "no such operator"),
            ("from torch_npu import npu_missing", "no such operator"),
            ("op = torch_npu.npu_missing\nuse(op)", "no such operator"),
            ("use(torch_npu.npu_missing)", "no such operator"),
            ("op = getattr(torch_npu, 'npu_missing')\nuse(op)", "no such operator"),
            ("op = getattr(torch_npu, 'npu_norm', None)\nop(x)", "gamma is missing"),
            (HELD_BY_AN_ATTRIBUTE, "gamma is missing"),
            (
                "def f(x):\n    op = torch_npu.npu_norm if x else print\n    op(x)",
                "gamma is missing",
            ),
        ],
    )
    def test_not_taken(self, tmp_path: Path, call: str, found: str) -> None:
        name, said, why = verdict(tmp_path, call)
        assert said == "fail", name
        assert found in why

    @pytest.mark.parametrize(
        "call",
        [
            "torch.ops.npu.npu_norm(*x)",
            "torch.ops.npu.npu_norm(x, **y)",
            "use(torch.ops.npu.npu_norm)",
            "op = torch.ops.npu.npu_norm\nuse(op)",
            "from torch_npu import npu_norm",
            "try:\n    from torch_npu import npu_missing\nexcept ImportError:\n    pass",
            "op = torch_npu.npu_missing if hasattr(torch_npu, 'npu_missing') else None",
            "op = torch_npu.npu_missing if hasattr(torch_npu, 'npu_missing') else None\nop(x)",
            "try:\n    from torch_npu import npu_missing as f\nexcept ImportError:\n    pass\nf(x)",
            "op = getattr(torch_npu, 'npu_missing', None)\nop(x)",
            "def f(x):\n    n = [1]\n    if x:\n        n = 1\n    torch_npu.npu_sum(x, shape=n)",
            "torch_npu.npu_cut_into_pieces(x)",
            "if hasattr(torch_npu, 'npu_missing') and x:\n    torch_npu.npu_missing(x)",
            "try:\n    torch_npu.npu_missing(x)\nexcept (AttributeError, RuntimeError):\n    pass",
            "hasattr(torch_npu, 'npu_missing') and torch_npu.npu_missing(x)",
            "torch.ops.npu.sgmv_expand(x)",
            "torch.ops.custom.npu_mla_prolog_v3(x)",
        ],
    )
    def test_unknown(self, tmp_path: Path, call: str) -> None:
        assert verdict(tmp_path, call)[1] == "not-applicable"

    @pytest.mark.parametrize(
        "source",
        [
            "torch_npu.npu.synchronize()",
            "torch_npu.profiler.profile(x)",
            "torch.npu.npu_norm(x)",
            "dtype = torch_npu.float8_e8m0fnu",
            "# torch_npu.npu_missing(x)",
            "'torch_npu.npu_missing(x)'",
            "hasattr(torch_npu, 'npu_missing')",
        ],
    )
    def test_no_operator(self, tmp_path: Path, source: str) -> None:
        assert judge(tmp_path, f"import torch_npu\n{source}\n") == []

    def test_a_failure_says_where_and_what_to_do(self, tmp_path: Path) -> None:
        (result,) = judge(
            tmp_path,
            "import torch_npu\n\nclass A:\n    def f(self, x):\n"
            "        torch_npu.npu_norm(x, x)\n        torch_npu.npu_norm(x)\n",
        )
        assert result.verdict == "fail"
        assert result.site is not None
        assert (result.site.path.name, result.site.line) == ("ascend_backend.py", 6)
        assert result.site.symbol == "A.f"
        assert result.expected == SCHEMAS[0]
        assert result.code == "torch_npu.npu_norm(x)"
        assert result.action
        assert "torch_npu 9.9" in result.message


VALUES: dict[str, tuple[str, ...]] = {
    "None": ("None",),
    "int": ("3", "-3"),
    "bool": ("True",),
    "float": ("1.5",),
    "str": ("'TND'",),
    "dtype": ("torch.float16",),
    "tensor": ("torch.ones(2, dtype=torch.int64)", "torch.arange(1)"),
    "[]": ("[]", "()"),
    "[int]": ("[1, 2]", "(1, 2)"),
    "[float]": ("[1.5]",),
    "[str]": ("['a']",),
    "[None]": ("[None]",),
    "ints": ("np.arange(3)", "np.array([1, 2]).cumsum()", "np.zeros(2, dtype=np.int32)"),
    "floats": ("np.zeros(2)", "np.array([1, 2]).astype(np.float64)"),
}


NUMBERS = ("int", "SymInt", "float", "bool", "ScalarType")


class TestTypes:
    """What a type is said to take is what torch's own argument parser takes."""

    @pytest.fixture
    def operator(self) -> Iterator[Any]:
        new_library: Any = torch.library.Library
        library = new_library("contracts_test", "DEF")
        for number, type_ in enumerate(self.types()):
            library.define(f"takes_{number}(Tensor self, *, {type_} x) -> Tensor")
            library.impl(f"takes_{number}", lambda self, x: self.clone(), "CPU")
        yield torch.ops.contracts_test
        library._destroy()

    @staticmethod
    def types() -> list[str]:
        plain = [*contracts._ACCEPTED, "int[2]", "SymInt[1]"]
        return [*plain, *(f"{each}?" for each in plain if not each.startswith("Tensor?"))]

    @pytest.mark.parametrize(
        ("kind", "text"), [(kind, text) for kind, texts in VALUES.items() for text in texts]
    )
    def test_as_torch_does(self, operator: Any, kind: str, text: str) -> None:
        assert kinds_of(ast.parse(text, mode="eval").body, lambda name: []) == {kind}
        value = eval(text)  # noqa: S307
        differing = []
        for number, type_ in enumerate(self.types()):
            # A tensor stands for a number if it has one element, which a text does not tell.
            one = kind == "tensor" and type_.strip("?") in NUMBERS
            given = torch.ones(1, dtype=torch.int64) if one else value
            try:
                getattr(operator, f"takes_{number}")(torch.ones(1), x=given)
                taken = True
            except RuntimeError:
                taken = False
            if taken != contracts.accepts(type_, kind):
                differing.append((type_, taken))
        assert differing == []

    def test_lengths_of_the_real_attention(self) -> None:
        """Lists, arrays of whole numbers and tensors are lengths; a number is none."""
        schema = torch_npu_wheel.read(NEWEST).schemas["npu_fused_infer_attention_score"]
        (lengths,) = (a for a in parse(schema).arguments if a.name == "actual_seq_lengths")  # type: ignore[union-attr]
        taken = {kind for kind in VALUES if contracts.accepts(lengths.type, kind)}
        assert taken == {"None", "[]", "[int]", "ints", "tensor"}


class TestReplacements:
    """What npu_ops puts in an operator's place takes what the operator takes."""

    def check(self, change: tuple[str, str] | None = None, given: str = NEWEST) -> dict[str, str]:
        source = NPU_OPS.read_text()
        if change:
            assert change[0] in source
            source = source.replace(*change)
        results = replacements.check(
            ast.parse(source), contracts.VENDORED, torch_npu_wheel.read(given)
        )
        return {result.id: result.verdict for result in results}

    @pytest.mark.parametrize("given", [OLDEST, NEWEST])
    def test_ours(self, given: str) -> None:
        assert self.check(given=given) == {
            f"contract.{name}.replacement": "pass" for name in (ATTENTION, WORKSPACE, NORM)
        }

    @pytest.mark.parametrize(
        ("old", "new", "name"),
        [
            ("        epsilon: float = 1e-06,", "        eps: float = 1e-06,", NORM),
            ("        epsilon: float = 1e-06,", "        epsilon: float = 1e-05,", NORM),
            ("        epsilon: float = 1e-06,", "        epsilon: float,", NORM),
            (
                "        x1: torch.Tensor,\n        x2",
                "        x2: torch.Tensor,\n        x1",
                NORM,
            ),
            ("    def default(self)", "    def other(self)", NORM),
            ("    def __getattr__", "    def other", ATTENTION),
            ("    def out(self, *args: Any, **kwargs", "    def out(self, **kwargs", ATTENTION),
            (
                "    def __call__(self, *args: Any, **kwargs",
                "    def __call__(self, **k",
                ATTENTION,
            ),
            ("_unavailable(*args: Any, **kwargs: Any)", "_unavailable(*args: Any)", WORKSPACE),
        ],
    )
    def test_a_narrower_one_is_a_failure(self, old: str, new: str, name: str) -> None:
        found = self.check((old, new))
        failed = [each for each, verdict in found.items() if verdict == "fail"]
        assert failed == [f"contract.{name}.replacement"]

    def test_a_missing_operator(self) -> None:
        assert (
            self.check(('"npu_add_rms_norm"', '"npu_gone"'))["contract.npu_gone.replacement"]
            == "not-applicable"
        )
        change = ('_ATTENTION = "npu_fused_infer_attention_score"', '_ATTENTION = "npu_gone"')
        assert self.check(change)["contract.npu_gone.replacement"] == "fail"


class TestUses:
    def test_symbols_and_guards(self) -> None:
        source = (
            "import torch_npu\n"
            "class A:\n    def f(self):\n        if hasattr(torch_npu, 'npu_a'):\n"
            "            return torch_npu.npu_a(1)\n        return torch_npu.npu_b(2)\n"
        )
        found = [
            (use.operator, use.site.symbol, use.site.line, use.guard)
            for use in find_uses(ast.parse(source), contracts.VENDORED)
        ]
        assert found == [("npu_a", "A.f", 5, "hasattr"), ("npu_b", "A.f", 6, "")]
