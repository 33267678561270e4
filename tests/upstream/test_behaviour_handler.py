"""Execute `_handle_deterministic_inference` of patched releases beside the original."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sgl_npu_patch.simulator.sglang import Device, Execution
from tests.upstream.releases import FORKS_NATIVE, FORKS_PATCHED, RELEASES_PATCHED, release_tree
from tests.upstream.trees import patched_tree

GUARD_VARIABLES = ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC")
USER_VARIABLES = ("ASCEND_USE_FIA", "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT")
PYTORCH_FORCED = "Sampling backend is set to pytorch for deterministic inference."

# The one fork that stands on an older release than 0.5.9.
OLD_FORK = "power-sglang-cuda124==1.0.2"
PATCHED = (*RELEASES_PATCHED, *FORKS_PATCHED)
KEEPS_ASCEND_SAMPLING = {*PATCHED[PATCHED.index("0.5.9") :]} - {OLD_FORK}
KEEPS_RADIX_CACHE = ("0.5.12", "0.5.12.post1", "lsglang==1.3.1")
# The releases where upstream forgot the gate for every backend.
NO_RADIX_GATE = ("0.5.3.post2", "0.5.3.post3")
NATIVE = ("0.5.13", "0.5.16", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.23", *FORKS_NATIVE)

HANDLER_SHAPES = ("0.5.3rc2", "0.5.3.post3", "0.5.4.post1", "0.5.9", "0.5.12.post1")

DEEPSEEK = "DeepseekV3ForCausalLM"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of the handler left behind; `environment` holds what it set."""

    attributes: dict[str, Any]
    environment: dict[str, str]
    warnings: list[str]
    error: str | None

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def comparable(self) -> Outcome:
        """Return it with the lists of backends taken out of its messages."""

        def clean(text: str) -> str:
            return re.sub(r"\['[^]]*'\]", "[...]", text)

        return dataclasses.replace(
            self,
            warnings=[clean(text) for text in self.warnings],
            error=None if self.error is None else clean(self.error),
        )


class ServerArgs(SimpleNamespace):
    """Hold the arguments; the handler is the tree's, the model configuration is the test's."""

    def get_model_config(self) -> SimpleNamespace:
        return SimpleNamespace(hf_config=self.get_hf_config())

    def get_hf_config(self) -> SimpleNamespace:
        return SimpleNamespace(architectures=[self.architecture])


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*GUARD_VARIABLES, *USER_VARIABLES, "NCCL_ALGO"):
        monkeypatch.delenv(name, raising=False)


@cache
def _execution(tree: Path, device: Device) -> Execution:
    """Return an execution in which the handler's modules are real, kept for the process."""
    return _new_execution(tree, device)


def _new_execution(tree: Path, device: Device, torch_npu: ModuleType | None = None) -> Execution:
    choices = "sglang.srt.arg_groups.choices"
    real = ["sglang.srt.environ", "sglang.srt.arg_groups.model_override_base", choices]
    provide: dict[str, Any] = {
        "sglang.srt.arg_groups.arg_utils": {"is_record": lambda _: False},
        "sglang.srt.runtime_context": {"get_context": _nothing_published},
        "torch_npu": torch_npu,
    }
    execution = Execution(tree, device, provide, real)
    if execution.file(choices):
        # From 0.5.20 on ServerArgs is built by msgspec, and of its module only the lists matter.
        with execution:
            lists = vars(execution.load(choices))
        provide["sglang.srt.server_args"] = {k: v for k, v in lists.items() if k.isupper()}
    else:
        real.append("sglang.srt.server_args")
    return Execution(tree, device, provide, real)


def _nothing_published() -> None:
    raise ValueError("nothing is published")


def run(execution: Execution, **chosen: Any) -> Outcome:
    """Run the handler on the release's default arguments with the chosen ones over them."""
    arguments = {
        "enable_deterministic_inference": True,
        "attention_backend": "ascend",
        "sampling_backend": "ascend",
        "architecture": "Qwen3ForCausalLM",
        "model_path": "some/model",
        **chosen,
    }
    outside = dict(os.environ)
    collector = _Collector()
    root = logging.getLogger()
    error = None
    try:
        with execution:
            handler, defaults = _handler(execution)
            args = ServerArgs(**{**defaults, **arguments})
            args._model_config = args.get_model_config()
            known = set(vars(args))
            before = dict(os.environ)
            root.addHandler(collector)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    handler(args)
                except ValueError as exception:
                    error = str(exception)
            environment = {k: v for k, v in os.environ.items() if before.get(k) != v}
    finally:
        root.removeHandler(collector)
        os.environ.clear()
        os.environ.update(outside)
    attributes = dict(vars(args))
    for _, declared in attributes.pop("_resolved_overrides", []):
        attributes.update(declared)
    del attributes["_model_config"]
    assert set(attributes) <= known, "an argument that this release does not have"
    messages = [*collector.messages, *(str(warning.message) for warning in caught)]
    return Outcome(attributes, environment, messages, error)


def _handler(execution: Execution) -> tuple[Any, dict[str, Any]]:
    """Load the handler and the defaults of its release's arguments."""
    overrides = "sglang.srt.arg_groups.overrides"
    hook = "sglang.srt.arg_groups.attention_hook"
    if execution.file(overrides):
        execution.load(overrides)
    if execution.file(hook):
        loaded = execution.load(hook)
        return loaded.handle_deterministic_inference, dict(FIELDS_WITHOUT_DATACLASS)
    server_args = execution.load("sglang.srt.server_args").ServerArgs
    defaults = {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(server_args)
    }
    return server_args._handle_deterministic_inference, defaults


FIELDS_WITHOUT_DATACLASS = {
    "rl_on_policy_target": None,
    "enable_aiter_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": None,
    "disable_radix_cache": False,
    "disable_custom_all_reduce": False,
    "enable_torch_symm_mem": False,
    "disable_cuda_graph": False,
    "enable_torch_compile": False,
    "tp_size": 1,
}


@pytest.mark.parametrize("version", [*PATCHED, *NATIVE])
class TestSeams:
    """The seams of the handler on an NPU."""

    def test_ascend_attention_is_accepted(self, version: str) -> None:
        result = run(_patched(version))
        assert result.error is None
        assert result["attention_backend"] == "ascend"

    def test_ascend_is_listed_once(self, version: str) -> None:
        execution = _patched(version)
        with execution:
            _handler(execution)
            listed = execution.attribute(
                "sglang.srt.server_args", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"
            )
        assert listed.count("ascend") == 1

    @pytest.mark.parametrize("backend", ["torch_native", "flashmla", "ASCEND", ""])
    def test_other_attention_backends_are_refused(self, version: str, backend: str) -> None:
        result = run(_patched(version), attention_backend=backend)
        assert result.error is not None
        assert "attention backends are supported for deterministic inference" in result.error

    def test_ascend_sampling_is_kept_where_the_seam_is(self, version: str) -> None:
        result = run(_patched(version), sampling_backend="ascend")
        if version in KEEPS_ASCEND_SAMPLING or version in NATIVE:
            assert result["sampling_backend"] == "ascend"
            assert PYTORCH_FORCED not in result.warnings
        else:
            assert result["sampling_backend"] == "pytorch"
            assert result.warnings.count(PYTORCH_FORCED) == 1

    @pytest.mark.parametrize("backend", ["flashinfer", "pytorch", "other", None])
    def test_other_sampling_becomes_pytorch(self, version: str, backend: str | None) -> None:
        result = run(_patched(version), sampling_backend=backend)
        assert result["sampling_backend"] == "pytorch"
        assert result.warnings.count(PYTORCH_FORCED) == 1

    @pytest.mark.parametrize("tp_size", [1, 2])
    def test_radix_cache_on_ascend(self, version: str, tp_size: int) -> None:
        result = run(_patched(version), tp_size=tp_size)
        keeps = version in KEEPS_RADIX_CACHE or version in NATIVE
        assert result["disable_radix_cache"] is not keeps
        said = [text for text in result.warnings if "radix cache" in text.lower()]
        assert len(said) == (0 if keeps else 1)

    def test_radix_cache_switched_off_by_the_user_stays_off(self, version: str) -> None:
        assert run(_patched(version), disable_radix_cache=True)["disable_radix_cache"] is True


@pytest.mark.parametrize("version", PATCHED)
class TestUnchanged:
    """What the patch must leave as it was."""

    @pytest.mark.parametrize("device", ["cuda", "hip", "xpu", "cpu"])
    def test_off_the_npu(self, version: str, device: Device) -> None:
        original, patched = _pair(version, device)
        for chosen in _grid():
            assert run(patched, **chosen).comparable() == run(original, **chosen).comparable()

    @pytest.mark.parametrize("device", ["cuda", "npu"])
    def test_without_deterministic_inference(self, version: str, device: Device) -> None:
        original, patched = _pair(version, device)
        for attention, sampling in product(("ascend", "fa3"), ("ascend", "flashinfer")):
            chosen = {
                "attention_backend": attention,
                "sampling_backend": sampling,
                "enable_deterministic_inference": False,
                "enable_torch_compile": True,
            }
            result = run(patched, **chosen)
            assert result == run(original, **chosen)
            assert not result.warnings

    def test_other_backends_on_an_npu(self, version: str) -> None:
        """Only what the launch guards set may differ."""
        original, patched = _pair(version, "npu")
        for chosen in _grid():
            before, after = run(original, **chosen), run(patched, **chosen)
            assert after.comparable().error == before.comparable().error
            differing = {name for name, value in after.attributes.items() if before[name] != value}
            assert all(re.search("cuda_graph|torch_compile", name) for name in differing)
            added = after.environment.keys() - before.environment.keys()
            assert added == (set() if after.error else {*GUARD_VARIABLES})
            missing = set(before.comparable().warnings) - set(after.comparable().warnings)
            assert not missing

    @pytest.mark.parametrize("device", ["cuda", "npu"])
    def test_deepseek_is_refused_on_ascend_as_on_flashinfer(
        self, version: str, device: Device
    ) -> None:
        original, patched = _pair(version, device)
        refusal = run(original, attention_backend="flashinfer", architecture=DEEPSEEK).comparable()
        result = run(patched, attention_backend="ascend", architecture=DEEPSEEK).comparable()
        if refusal.error is None:
            assert "Deepseek" not in _handler_source(version)
            assert result.error is None
        else:
            assert result.error is not None
            assert result.error == refusal.error.replace("flashinfer", "ascend")

    def test_rl_on_policy_target_still_enables_it(self, version: str) -> None:
        original, patched = _pair(version, "cuda")
        chosen = {
            "rl_on_policy_target": "fsdp",
            "enable_deterministic_inference": False,
            "attention_backend": "fa3",
            "sampling_backend": "flashinfer",
        }
        assert run(patched, **chosen).comparable() == run(original, **chosen).comparable()


@pytest.mark.parametrize("version", NO_RADIX_GATE)
@pytest.mark.parametrize("backend", ["fa3", "triton", "flashinfer"])
def test_the_added_radix_gate_is_for_ascend_only(version: str, backend: str) -> None:
    result = run(_patched(version), attention_backend=backend)
    assert result["disable_radix_cache"] is False


@pytest.mark.parametrize("version", PATCHED)
def test_launch_guards_run_on_every_release(version: str) -> None:
    result = run(_patched(version), disable_cuda_graph=False, enable_torch_compile=True)
    assert result["disable_cuda_graph"] is True
    assert result["enable_torch_compile"] is False
    assert result.environment["HCCL_DETERMINISTIC"] == "strict"


@pytest.mark.parametrize("version", HANDLER_SHAPES)
class TestLaunchGuards:
    """What deterministic inference on an NPU depends on, settled before workers start."""

    @pytest.fixture
    def execution(self, version: str) -> Execution:
        """Give an execution of the test's own: warnings may be said once a process."""
        return _new_execution(patched_tree(version), "npu")

    @pytest.mark.parametrize("tp_size", [1, 2])
    def test_collectives_are_deterministic(self, execution: Execution, tp_size: int) -> None:
        result = run(execution, tp_size=tp_size)
        assert result.environment["HCCL_DETERMINISTIC"] == "strict"
        assert result.environment["LCCL_DETERMINISTIC"] == "1"

    @pytest.mark.parametrize("name", GUARD_VARIABLES)
    def test_the_users_choice_of_collectives_is_kept(
        self, execution: Execution, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "false")
        result = run(execution)
        assert name not in result.environment
        assert len(result.environment.keys() & {*GUARD_VARIABLES}) == 1

    @pytest.mark.parametrize("chosen", ["disable_cuda_graph", "enable_torch_compile"])
    def test_capture_and_compilation_are_off(self, execution: Execution, chosen: str) -> None:
        result = run(execution, **{chosen: chosen == "enable_torch_compile"})
        assert result["disable_cuda_graph"] is True
        assert result["enable_torch_compile"] is False
        assert sum(chosen in text for text in result.warnings) == 1

    def test_nothing_is_said_about_what_is_off_already(self, execution: Execution) -> None:
        result = run(execution, disable_cuda_graph=True, enable_torch_compile=False)
        switches = ("disable_cuda_graph", "enable_torch_compile")
        assert not [text for text in result.warnings if any(n in text for n in switches)]

    def test_old_torch_npu_cannot_capture(self, version: str) -> None:
        torch_npu = ModuleType("torch_npu")
        torch_npu.npu = SimpleNamespace()  # type: ignore[attr-defined]
        result = run(_new_execution(patched_tree(version), "npu", torch_npu))
        assert result["disable_cuda_graph"] is True

    @pytest.mark.parametrize("name", USER_VARIABLES)
    def test_a_missing_variable_is_said_once(
        self, execution: Execution, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        for other in USER_VARIABLES:
            monkeypatch.setenv(other, "1")
        monkeypatch.delenv(name)
        messages = [text for _ in range(2) for text in run(execution).warnings]
        assert sum(name in text for text in messages) == 1

    def test_nothing_is_said_about_variables_that_are_set(
        self, execution: Execution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in USER_VARIABLES:
            monkeypatch.setenv(name, "1")
        result = run(execution)
        assert not [text for text in result.warnings if any(n in text for n in USER_VARIABLES)]

    def test_a_second_run_of_the_handler_finds_the_same(self, execution: Execution) -> None:
        first = run(execution)
        second = run(execution)
        assert second.attributes == first.attributes
        assert second.environment == first.environment


@pytest.mark.parametrize("version", NATIVE)
def test_native_releases_have_no_launch_guards(version: str) -> None:
    """The gap `launch_guards_missing`, seen: the assertions above can fail."""
    result = run(_execution(release_tree(version), "npu"))
    assert not result.environment.keys() & {*GUARD_VARIABLES}
    assert result["disable_cuda_graph"] is False


def _patched(version: str) -> Execution:
    """Return the patched release on an NPU; native ones as they are published."""
    tree = release_tree(version) if version in NATIVE else patched_tree(version)
    return _execution(tree, "npu")


def _pair(version: str, device: Device) -> tuple[Execution, Execution]:
    return (
        _execution(release_tree(version), device),
        _execution(patched_tree(version), device),
    )


def _grid() -> Iterator[dict[str, Any]]:
    backends = (None, "fa3", "triton", "flashinfer", "torch_native")
    for attention, tp_size, architecture in product(
        backends, (1, 2), ("Qwen3ForCausalLM", DEEPSEEK)
    ):
        for sampling in ("flashinfer", "pytorch", None) if tp_size == 1 else ("flashinfer",):
            yield {
                "attention_backend": attention,
                "sampling_backend": sampling,
                "tp_size": tp_size,
                "architecture": architecture,
            }


def _handler_source(version: str) -> str:
    source = (release_tree(version) / "sglang" / "srt" / "server_args.py").read_text("utf-8")
    return source.partition("def _handle_deterministic_inference")[2].partition("\n    def ")[0]
