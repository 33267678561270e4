"""Execute the edited mode: leaving it restores what was there."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tests.helpers import OPS, judge, shape


def test_the_result_leaves_the_mode_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    library = SimpleNamespace(_destroy=lambda: None)

    def enable(key: str, bmm: bool) -> SimpleNamespace:
        calls.append(f"enable {key} {bmm}")
        return library

    ops = SimpleNamespace(
        enable=enable, disable=lambda: calls.append("disable"), bmm_enabled=lambda: False
    )
    package = "sglang.srt.hardware_backend.npu.batch_invariant_ops"
    for name, content in {
        package: SimpleNamespace(npu_ops=ops),
        "sglang.srt.utils.common": SimpleNamespace(is_npu=lambda: True),
    }.items():
        monkeypatch.setitem(sys.modules, name, content)
    _, files = judge("batch_invariant", shape("0.5.12"))
    module = ModuleType("ops")
    module.__dict__.update(
        contextlib=contextlib,
        torch=SimpleNamespace(bmm=None),
        get_dispatch_device_backend=lambda: "NPU",
        _MODE=False,
        _LIB=None,
        _bmm=None,
    )
    exec(files[OPS].decode().partition("_bmm = None\n")[2], module.__dict__)
    with module.set_batch_invariant_mode():
        assert module._MODE
    assert not module._MODE
    assert calls == ["enable NPU True", "disable"]
    module.enable_batch_invariant_mode(False)
    scope = module.set_batch_invariant_mode(False)
    scope.__enter__()
    assert not module._MODE
    assert not scope.__exit__(KeyError, KeyError(), None)
    assert module._MODE
    assert calls[2:] == ["enable NPU False", "disable", "enable NPU False"]
