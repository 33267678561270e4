"""Give tests an environment in which a deterministic server could be started."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    for name in ("ASCEND_USE_FIA", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT"):
        monkeypatch.setenv(name, "1")
