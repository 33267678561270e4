"""launch_guards settles what deterministic inference on an NPU depends on."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sgl_npu_patch.simulator import extension, torch_npu

VARIABLES = (
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "ASCEND_USE_FIA",
    "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT",
    "SGLANG_ENABLE_TORCH_COMPILE",
    "SGLANG_VIT_ENABLE_CUDA_GRAPH",
    "SGLANG_USE_BREAKABLE_CUDA_GRAPH",
)
# The flags of the first release concerned, of one in between and of the last.
EARLY = {"disable_cuda_graph": False, "enable_torch_compile": False}
MIDDLE = {**EARLY, "enable_piecewise_cuda_graph": False}
LATE = {
    **EARLY,
    "disable_piecewise_cuda_graph": False,
    "enforce_piecewise_cuda_graph": False,
    "enable_breakable_cuda_graph": False,
    "debug_cuda_graph": False,
}
GRAPHS = {
    "disable_cuda_graph": True,
    "enable_breakable_cuda_graph": False,
    "debug_cuda_graph": False,
}
COMPILED = {
    "enable_torch_compile": False,
    "enable_piecewise_cuda_graph": False,
    "enforce_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": True,
}
SAFE = {**GRAPHS, **COMPILED}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset what is read, and let nothing that is set outlive the test."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)


@pytest.fixture
def launch_guards(package: str, caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING)
    return importlib.import_module(f"{package}.launch_guards")


@pytest.fixture
def capturing(fake_torch_npu: Any, installed_extension: None) -> None:
    """Install what can renew the lengths of a captured attention."""
    sys.modules["torch_npu"] = fake_torch_npu


def _arguments(given: dict[str, bool], **changed: bool) -> SimpleNamespace:
    return SimpleNamespace(**{**given, **changed})


def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_USE_FIA", "1")
    monkeypatch.setenv("SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT", "1")


@pytest.mark.parametrize(
    "release", [EARLY, MIDDLE, LATE, {}], ids=["early", "middle", "late", "none"]
)
def test_everything_that_captures_or_compiles_ends_off(
    launch_guards: Any, release: dict[str, bool]
) -> None:
    arguments = _arguments({name: not SAFE[name] for name in release})
    launch_guards.apply(arguments)
    assert vars(arguments) == {name: SAFE[name] for name in release}


@pytest.mark.parametrize("flag", SAFE)
def test_each_flag_is_named_when_it_changes(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    _quiet(monkeypatch)
    arguments = _arguments({flag: not SAFE[flag]})
    launch_guards.apply(arguments)
    (message,) = caplog.messages
    assert f"{flag}={SAFE[flag]}" in message


def test_nothing_is_said_about_what_is_safe_already(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quiet(monkeypatch)
    launch_guards.apply(_arguments(SAFE))
    assert caplog.messages == []


@pytest.mark.usefixtures("capturing")
def test_graphs_stay_where_they_can_be_renewed(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quiet(monkeypatch)
    monkeypatch.setenv("SGLANG_VIT_ENABLE_CUDA_GRAPH", "true")
    arguments = _arguments({name: not safe for name, safe in SAFE.items()})
    launch_guards.apply(arguments)
    assert vars(arguments) == {**{name: not GRAPHS[name] for name in GRAPHS}, **COMPILED}
    assert os.environ["SGLANG_VIT_ENABLE_CUDA_GRAPH"] == "true"
    (message,) = caplog.messages
    assert "torch.compile" in message


@pytest.mark.parametrize(
    ("extension_version", "torch_npu_version"),
    [("1.0.0", "2.10.0"), ("2.0.0", "2.8.0.post2")],
)
@pytest.mark.usefixtures("capturing", "extension_version", "torch_npu_version")
def test_graphs_go_where_one_package_cannot_renew_them(launch_guards: Any) -> None:
    arguments = _arguments(EARLY)
    launch_guards.apply(arguments)
    assert arguments.disable_cuda_graph is True


@pytest.mark.usefixtures("capturing")
def test_graphs_go_without_the_extension(launch_guards: Any) -> None:
    extension.uninstall()
    arguments = _arguments(EARLY)
    launch_guards.apply(arguments)
    assert arguments.disable_cuda_graph is True


@pytest.mark.parametrize("broken", ["stub", "not loaded"])
def test_graphs_go_when_in_doubt(
    launch_guards: Any, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    if broken == "stub":
        # Offers the interface, and fails as soon as npu_ops asks for more.
        stub = ModuleType("torch_npu")
        stub.__dict__["npu"] = SimpleNamespace(register_npu_graph_handler=None)
        monkeypatch.setitem(sys.modules, "torch_npu", stub)
    arguments = _arguments(EARLY)
    launch_guards.apply(arguments)
    assert arguments.disable_cuda_graph is True


def test_an_npu_ops_that_cannot_be_imported_is_doubt(
    launch_guards: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu = SimpleNamespace(register_npu_graph_handler=None, NpuGraphOpHandler=object)
    stub = ModuleType("torch_npu")
    stub.__dict__["npu"] = npu
    monkeypatch.setitem(sys.modules, "torch_npu", stub)
    monkeypatch.setitem(sys.modules, f"{package}.npu_ops", None)
    arguments = _arguments(EARLY)
    launch_guards.apply(arguments)
    assert arguments.disable_cuda_graph is True


@pytest.mark.parametrize(
    "variable",
    [
        "SGLANG_ENABLE_TORCH_COMPILE",
        "SGLANG_VIT_ENABLE_CUDA_GRAPH",
        "SGLANG_USE_BREAKABLE_CUDA_GRAPH",
    ],
)
def test_variables_that_capture_or_compile_end_off(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    _quiet(monkeypatch)
    launch_guards.apply(_arguments(SAFE))
    assert variable not in os.environ
    monkeypatch.setenv(variable, "True")
    launch_guards.apply(_arguments(SAFE))
    assert os.environ[variable] == "0"
    assert f"{variable}=0" in caplog.text


def test_collectives_are_deterministic(launch_guards: Any) -> None:
    launch_guards.apply(_arguments(EARLY))
    assert os.environ["HCCL_DETERMINISTIC"] == "strict"
    assert os.environ["LCCL_DETERMINISTIC"] == "1"


def test_the_users_collectives_are_kept(
    launch_guards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_DETERMINISTIC", "true")
    monkeypatch.setenv("LCCL_DETERMINISTIC", "0")
    launch_guards.apply(_arguments(EARLY))
    assert os.environ["HCCL_DETERMINISTIC"] == "true"
    assert os.environ["LCCL_DETERMINISTIC"] == "0"


@pytest.mark.parametrize("variable", ["ASCEND_USE_FIA", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT"])
@pytest.mark.parametrize("value", [None, "", "0", "false", "1", "TRUE"])
def test_a_missing_variable_is_said(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str | None,
) -> None:
    _quiet(monkeypatch)
    monkeypatch.delenv(variable)
    if value is not None:
        monkeypatch.setenv(variable, value)
    launch_guards.apply(_arguments(SAFE))
    expected = [] if value in ("1", "TRUE") else [True]
    assert [variable in message for message in caplog.messages] == expected


def test_yes_is_true_where_sglang_reads_it_so(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EnvBool takes it for the weights; get_bool_env_var reads it as false for the attention."""
    monkeypatch.setenv("ASCEND_USE_FIA", "yes")
    monkeypatch.setenv("SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT", "yes")
    launch_guards.apply(_arguments(SAFE))
    (message,) = caplog.messages
    assert "ASCEND_USE_FIA" in message


def test_each_warning_comes_once_and_each_setting_every_time(
    launch_guards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        arguments = _arguments(LATE, enable_torch_compile=True)
        launch_guards.apply(arguments)
        assert vars(arguments) == {name: SAFE[name] for name in LATE}
    assert len(caplog.messages) == 4
    assert len({*caplog.messages}) == 4


@pytest.mark.usefixtures("capturing")
def test_asking_enables_nothing(launch_guards: Any) -> None:
    launch_guards.apply(_arguments(EARLY))
    assert torch_npu.handlers == {}
    assert extension.calls == []
