from __future__ import annotations

import pytest

from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.engine.errors import Refused
from tests.audit.trees import NORM, memory

MODEL, OTHER = "srt/models/mine.py", "srt/models/other.py"
ATTENTION = "srt/hardware_backend/npu/attention/ascend_backend.py"
FILES = {
    NORM: (
        "import torch\n\nclass Norm:\n    def forward_npu(self, x):\n        return helper(x)\n\n"
        "class Unused:\n    def forward_npu(self, x):\n        return torch.norm(x)\n\n"
        "def helper(x):\n    return torch.sum(x) if _is_npu else x\n"
    ),
    "srt/layers/linear.py": "from sglang.srt.layers.layernorm import Norm as Base\n",
    "srt/layers/experts.py": (
        "import torch\n\ndef experts_npu(x):\n    return torch.softmax(x, -1)\n"
    ),
    ATTENTION: "import torch_npu\n\ntorch_npu._npu_paged_attention(x)\ntorch_npu.npu_rms_norm(x)\n",
    MODEL: "from sglang.srt.layers.linear import Base\n\nclass Mine(Base):\n    pass\n",
    OTHER: "import torch\n\ndef forward_npu(x):\n    return torch.bmm(x, x)\n",
}  # fmt: skip


def found(model: str, **files: str) -> set[str]:
    tree = memory({**FILES, **files})
    return {call.name for call in audit(tree, model).findings}


def test_definitions_are_followed_and_attention_is_always_there() -> None:
    assert found(MODEL) == {"torch.sum", "torch_npu._npu_paged_attention"}


@pytest.mark.parametrize(
    "source",
    [
        "from sglang.srt.layers.experts import experts_npu\n\nclass A:\n    f = experts_npu\n",
        "from sglang.srt.layers import experts\n\ndef f(x):\n    return experts.experts_npu(x)\n",
        "from ..layers.experts import experts_npu as e\n\ndef f(x):\n    return e(x)\n",
        "def f(x):\n    from sglang.srt.layers.experts import experts_npu\n",
        "if _is_npu:\n    from sglang.srt.layers.experts import experts_npu\nF = experts_npu\n",
    ],
)
def test_ways_to_import(source: str) -> None:
    assert found(MODEL, **{MODEL: source}) == {"torch.softmax", "torch_npu._npu_paged_attention"}


def test_a_model_uses_what_stands_in_its_own_file() -> None:
    assert "torch.bmm" in found(OTHER)


def test_what_another_model_takes_by_value_is_not_this_ones() -> None:
    taken = "from torch_npu import npu_add_rms_norm\nimport torch\n"
    assert "torch_npu.npu_add_rms_norm" in found(OTHER, **{OTHER: taken})
    assert "torch_npu.npu_add_rms_norm" not in found(MODEL, **{OTHER: taken})


def test_the_path_may_begin_at_the_root() -> None:
    assert found(f"sglang/{OTHER}") == found(OTHER)


@pytest.mark.parametrize("model", ["srt/models/no.py", "", "..", "/etc/passwd"])
def test_no_such_model(model: str) -> None:
    with pytest.raises(Refused, match="the tree has no such file"):
        audit(memory(FILES), model)
