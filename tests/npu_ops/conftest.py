"""Load the vendored modules as SGLang has them, against the simulated NPU."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sgl_npu_patch.npu_ops.launch_guards import ENVIRONMENT
from sgl_npu_patch.simulator import device, extension, torch_npu

FOLDER = Path(__file__).parents[2] / "npu_ops"
PACKAGE = "vendored_batch_invariant_ops"


@pytest.fixture(scope="session", autouse=True)
def npu_device() -> None:
    device.install()


@pytest.fixture
def extension_version() -> extension.Version:
    """Give the version that is installed; a test overrides it by parametrizing."""
    return "2.0.0"


@pytest.fixture
def torch_npu_version() -> str:
    """Give the version that is installed; a test overrides it by parametrizing."""
    return "2.10.0"


@pytest.fixture
def fake_torch_npu(torch_npu_version: str, npu_device: None) -> Iterator[Any]:
    yield torch_npu.install(torch_npu_version)
    torch_npu.uninstall()


@pytest.fixture
def installed_extension(extension_version: extension.Version, npu_device: None) -> Iterator[None]:
    extension.install(extension_version)
    yield
    extension.uninstall()


@pytest.fixture
def package() -> Iterator[str]:
    """Give the name of a package without `__init__.py`, as SGLang's is, and forget its modules."""
    folder = ModuleType(PACKAGE)
    folder.__path__ = [str(FOLDER)]
    sys.modules[PACKAGE] = folder
    yield PACKAGE
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def npu_ops(package: str, fake_torch_npu: Any) -> Iterator[Any]:
    """Give a fresh module, and undo what the test enabled."""
    module: Any = importlib.import_module(f"{package}.npu_ops")
    yield module
    if module._state.library is not None:
        module._state.library._destroy()
    module.disable()


@pytest.fixture
def mode(npu_ops: Any, installed_extension: None) -> Any:
    """Give the module with the mode on."""
    npu_ops.enable()
    return npu_ops


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Run a test without gradients, as SGLang serves by default."""
    with torch.no_grad():
        yield


@pytest.fixture(params=[torch.no_grad, torch.inference_mode])
def grad_mode(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Run a test under each mode that SGLang serves in."""
    with request.param():
        yield request.param


VARIABLES = (
    *ENVIRONMENT,
    "ASCEND_USE_FA",
    "SGLANG_ENABLE_TORCH_COMPILE",
    "SGLANG_VIT_ENABLE_CUDA_GRAPH",
    "SGLANG_USE_BREAKABLE_CUDA_GRAPH",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset what launch_guards reads, and let nothing that it sets outlive the test."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)


@pytest.fixture
def launch_guards(package: str, caplog: pytest.LogCaptureFixture) -> Any:
    """Give a fresh module."""
    caplog.set_level(logging.WARNING)
    return importlib.import_module(f"{package}.launch_guards")
