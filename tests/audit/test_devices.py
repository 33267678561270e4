from __future__ import annotations

import pytest

from tests.audit.trees import MODE, calls

ARGS, COMMON = "srt/server_args.py", "srt/utils/common.py"
HANDLER = "def _handle_deterministic_inference(self):\n    if self.enable:\n"


def found(path: str, source: str) -> list[tuple[str, str]]:
    return [(c.name, c.about) for c in calls({path: source}) if c.kind == "dispatch"]


@pytest.mark.parametrize(
    ("source", "seam"),
    [
        ("DETERMINISTIC_BACKENDS = ['fa3', 'triton']", "backend_lists"),
        ("DETERMINISTIC_BACKENDS: list = (\n    'fa3',\n    'flashinfer',\n)", "backend_lists"),
        ("RADIX_DETERMINISTIC = ['fa3', 'triton']", "radix_cache"),
        (f"{HANDLER}        assert x in ['fa3', 'triton']", "deepseek_refused"),
        ((f"{HANDLER}        if x not in ('fa3', 'triton'):\n            "
         "self.disable_radix_cache = True"), "radix_cache"),
    ],
)  # fmt: skip
def test_lists_without_ascend(source: str, seam: str) -> None:
    assert [about for _, about in found(ARGS, source)] == [seam]


@pytest.mark.parametrize(
    "source",
    [
        "DETERMINISTIC_BACKENDS = ['ascend', 'fa3', 'triton']",
        "DETERMINISTIC_BACKENDS = ['one', 'two']",
        "ATTENTION_BACKENDS = ['fa3', 'triton']  # not DETERMINISTIC",
        f"{HANDLER}        assert x in ['ascend', 'fa3', 'triton']",
        "def f():\n    x in ['fa3', 'triton']  # DETERMINISTIC",
    ],
)
def test_lists_that_are_in_order(source: str) -> None:
    assert found(ARGS, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "def get_dispatch_device_backend():\n    return 'CUDA' if is_cuda() else 'XPU'",
        (
            "def dispatch_forward(self):\n    if _is_cuda:\n        return a\n    elif _is_hip:\n"
            "        return b\n    return c"
        ),
    ],
)
def test_dispatching_without_the_npu(source: str) -> None:
    assert len(found(COMMON, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def get_dispatch_device_backend():\n    return 'CUDA' if is_cuda() else 'NPU'",
        (
            "def dispatch_forward(self):\n    if _is_cuda:\n        return a\n    elif _is_npu:\n"
            "        return b\n    elif _is_hip:\n        return c"
        ),
        "def dispatch_forward(self):\n    return self.forward_native",
        "def get_device_name():\n    return 'CUDA'  # dispatch_device",
    ],
)
def test_dispatching_that_is_in_order(source: str) -> None:
    assert found(COMMON, source) == []


def test_a_mode_that_registers_nothing_for_the_npu() -> None:
    source = 'def enable_batch_invariant_mode():\n    lib.impl("aten::mm", mm, "CUDA")\n'
    assert found(MODE, source) == [("enable_batch_invariant_mode", "batch_invariant")]
