from __future__ import annotations

import ast
from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.audit.npu_path import classify, where_of_file


def where(source: str) -> str:
    """Tell where the call of `here` in a module for all devices runs."""
    module = ast.parse(source)
    (call,) = (
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "here"
    )
    return classify(module, "common")[call].where


@pytest.mark.parametrize(
    "source",
    [
        "if _is_npu:\n    here()",
        "if is_npu():\n    here()",
        "if common.is_npu():\n    here()",
        "if self.is_npu and x:\n    here()",
        "if x and (_is_npu and y):\n    here()",
        "if not _is_npu:\n    pass\nelse:\n    here()",
        "if x:\n    pass\nelif _is_npu:\n    here()",
        "if not (x or not _is_npu):\n    here()",
        "if is_npu_arch35():\n    here()",
        "if device == 'npu':\n    here()",
        "if x.device.type == 'npu':\n    here()",
        "if device != 'npu':\n    pass\nelse:\n    here()",
        "if backend == 'ascend':\n    here()",
        "if torch.npu.is_available():\n    here()",
        "if hasattr(torch, 'npu') and x:\n    here()",
        "x = here() if _is_npu else y",
        "x = y if not _is_npu else here()",
        "x = _is_npu and here()",
        "x = not _is_npu or here()",
        "def f():\n    if not _is_npu:\n        return\n    here()",
        "def f():\n    if _is_npu:\n        pass\n    else:\n        raise E\n    here()",
        "def f():\n    for x in y:\n        if not _is_npu:\n            continue\n        here()",
        "def forward_npu(self):\n    here()",
        "def sample_ascend(self):\n    with x:\n        here()",
        "class AscendBackend:\n    def f(self):\n        return [here() for x in y]",
        "class NPUGraphRunner:\n    x = here()",
    ],
)
def test_on_an_npu_only(source: str) -> None:
    assert where(source) == "npu"


@pytest.mark.parametrize(
    "source",
    [
        "here()",
        "if x:\n    here()",
        "if _is_npu or x:\n    here()",
        "if _is_npu:\n    pass\nhere()",
        "if _is_cuda:\n    pass\nelse:\n    here()",
        "if x.is_cpu:\n    here()",
        "if x.device.type == 'cpu':\n    here()",
        "if device in ('cuda', 'npu'):\n    here()",
        "if is_cuda_graph:\n    here()",
        "if backend == 'triton':\n    here()",
        "def f():\n    if _is_cuda:\n        return\n    here()",
        "def snapshot(self):\n    here()",
    ],
)
def test_on_every_device(source: str) -> None:
    assert where(source) == "common"


@pytest.mark.parametrize(
    "source",
    [
        "if _is_cuda:\n    here()",
        "if is_hip() and x:\n    here()",
        "if _is_cuda or _is_hip:\n    here()",
        "if not _is_npu:\n    here()",
        "if _is_npu:\n    pass\nelse:\n    here()",
        "if device == 'cuda':\n    here()",
        "if x.is_cuda:\n    here()",
        "if torch.cuda.is_available():\n    here()",
        "if _is_cpu and _is_cpu_amx_available:\n    here()",
        "def f():\n    if _is_npu:\n        return\n    here()",
        "def forward_cuda(self):\n    here()",
        "def forward_cpu(self):\n    here()",
        "def apply_aiter(self):\n    if _is_npu:\n        here()",
        "x = here() if _use_aiter else y",
    ],
)
def test_never_on_an_npu(source: str) -> None:
    assert where(source) == "elsewhere"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("srt/hardware_backend/npu/utils.py", "npu"),
        ("srt/layers/attention/ascend_backend.py", "npu"),
        ("srt/layers/layernorm.py", "common"),
        ("srt/layers/quantization/fp8_utils.py", "common"),
        ("srt/layers/attention/flashinfer_backend.py", "elsewhere"),
        ("srt/hardware_backend/xpu/utils.py", "elsewhere"),
    ],
)
def test_files(path: str, expected: str) -> None:
    assert where_of_file(PurePosixPath(path)) == expected


def test_symbols() -> None:
    module = ast.parse("class A:\n    def f(self):\n        here()")
    (place,) = (p for n, p in classify(module, "common").items() if isinstance(n, ast.Call))
    assert place.symbol == "A.f"
