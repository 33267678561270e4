"""Give tests an environment in which a deterministic server could be started."""

from __future__ import annotations

import pytest

from sgl_npu_patch.npu_ops.launch_guards import ENVIRONMENT


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "ASCEND_USE_FA", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ASCEND_USE_FIA", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT"):
        monkeypatch.setenv(name, "1")
