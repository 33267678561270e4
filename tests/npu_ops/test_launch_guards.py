"""launch_guards settles what deterministic inference on an NPU depends on."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sgl_npu_patch.npu_ops.launch_guards import ENVIRONMENT
from sgl_npu_patch.simulator import extension, torch_npu

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


@dataclass
class Phase:
    """What is configured of one phase, as from 0.5.14 on."""

    backend: str = "full"
    max_bs: int = 8


@dataclass
class Config:
    """The configuration of graphs, as from 0.5.14 on."""

    decode: Phase = field(default_factory=Phase)
    prefill: Phase = field(default_factory=Phase)


OFF = Config(Phase("disabled"), Phase("disabled"))


class View:
    """Read arguments and refuse to assign them, as the views from 0.5.19 on do."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.fixture
def capturing(fake_torch_npu: Any, installed_extension: None) -> None:
    """Install what can renew the lengths of a captured attention."""
    sys.modules["torch_npu"] = fake_torch_npu


def _arguments(given: dict[str, bool], **changed: bool) -> SimpleNamespace:
    return SimpleNamespace(**{**given, **changed})


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
    launch_guards: Any, caplog: pytest.LogCaptureFixture, flag: str
) -> None:
    arguments = _arguments({flag: not SAFE[flag]})
    launch_guards.apply(arguments)
    (message,) = caplog.messages
    assert f"{flag}={SAFE[flag]}" in message


def test_nothing_is_said_about_what_is_safe_already(
    launch_guards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    launch_guards.apply(_arguments(SAFE))
    assert caplog.messages == []


@pytest.mark.usefixtures("capturing")
def test_graphs_stay_where_they_can_be_renewed(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    launch_guards.apply(_arguments(SAFE))
    assert variable not in os.environ
    monkeypatch.setenv(variable, "True")
    launch_guards.apply(_arguments(SAFE))
    assert os.environ[variable] == "0"
    assert f"{variable}=0" in caplog.text


@pytest.mark.parametrize(
    ("module", "listed", "size"),
    [
        ("sglang.srt.server_args", ["fa3", "triton"], -1),
        ("sglang.srt.server_args", ["fa3", "triton", "ascend"], 4096),
        ("sglang.srt.arg_groups.choices", ["ascend", "fa3"], 4096),
        ("sglang.srt.server_args", None, -1),
    ],
    ids=str,
)
def test_prompts_stay_whole_where_prefill_ignores_the_cache(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    listed: list[str] | None,
    size: int,
) -> None:
    """The list is that for which the radix cache stays on; the first releases have none."""
    stub = ModuleType(module)
    if listed is not None:
        stub.__dict__["RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"] = listed
    monkeypatch.setitem(sys.modules, module, stub)
    arguments = SimpleNamespace(chunked_prefill_size=4096, enable_mixed_chunk=True)
    for _ in range(2):
        launch_guards.apply(arguments)
    assert vars(arguments) == {"chunked_prefill_size": size, "enable_mixed_chunk": False}
    said = [message for message in caplog.messages if "chunked_prefill_size=-1" in message]
    assert len(said) == (1 if size == -1 else 0)
    assert "enable_mixed_chunk=False" in caplog.messages[0]


def test_prompts_may_be_cut_for_other_attention(launch_guards: Any) -> None:
    given = {"chunked_prefill_size": 4096, "enable_mixed_chunk": True}
    arguments = SimpleNamespace(attention_backend="triton", **given)
    launch_guards.apply(arguments)
    assert {name: vars(arguments)[name] for name in given} == given


def test_what_is_unset_is_set_without_a_word(
    launch_guards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    launch_guards.apply(_arguments(SAFE))
    assert {name: os.environ.get(name) for name in ENVIRONMENT} == {
        "ASCEND_USE_FIA": "1",
        "SGLANG_USE_FIA_NZ": None,
        "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": "1",
        "HCCL_DETERMINISTIC": "strict",
        "LCCL_DETERMINISTIC": "1",
        "HCCL_OP_EXPANSION_MODE": None,
        "CLOSE_MATMUL_K_SHIFT": "1",
        "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
        "ATB_LLM_LCOC_ENABLE": "0",
    }
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("variable", "given", "wanted"),
    [
        ("ASCEND_USE_FIA", "0", "1"),
        # get_bool_env_var reads it as false; EnvBool, which reads the next one, as true.
        ("ASCEND_USE_FIA", "yes", "1"),
        ("SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT", "false", "1"),
        ("SGLANG_USE_FIA_NZ", "1", "0"),
        ("HCCL_DETERMINISTIC", "true", "strict"),
        ("LCCL_DETERMINISTIC", "0", "1"),
        ("HCCL_OP_EXPANSION_MODE", "AIV", None),
        ("CLOSE_MATMUL_K_SHIFT", "0", "1"),
        ("ATB_MATMUL_SHUFFLE_K_ENABLE", "1", "0"),
        ("ATB_LLM_LCOC_ENABLE", "1", "0"),
    ],
)
def test_a_weaker_setting_is_replaced_and_said(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    given: str,
    wanted: str | None,
) -> None:
    monkeypatch.setenv(variable, given)
    launch_guards.apply(_arguments(SAFE))
    assert os.environ.get(variable) == wanted
    (message,) = caplog.messages
    assert variable in message
    assert repr(given) in message


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("ASCEND_USE_FIA", "True"),
        ("SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT", "yes"),
        ("SGLANG_USE_FIA_NZ", "false"),
        ("HCCL_DETERMINISTIC", "STRICT"),
        ("HCCL_OP_EXPANSION_MODE", "AI_CPU"),
    ],
)
def test_a_setting_that_suits_is_kept(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    given: str,
) -> None:
    monkeypatch.setenv(variable, given)
    launch_guards.apply(_arguments(SAFE))
    assert os.environ[variable] == given
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("source", "fia"),
    [('get("ASCEND_USE_FA")', None), ('get("ASCEND_USE_FIA")', "1"), (None, "1")],
)
def test_the_other_fused_attention_counts_where_it_is_read(
    launch_guards: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str | None,
    fia: str | None,
) -> None:
    (tmp_path / "attention").mkdir()
    path = tmp_path / "attention" / "backend.py"
    path.write_bytes(b"\xff" if source is None else source.encode())
    monkeypatch.setattr(launch_guards, "__file__", str(tmp_path / "ours" / "launch_guards.py"))
    monkeypatch.setenv("ASCEND_USE_FA", "1")
    launch_guards.apply(_arguments(SAFE))
    assert os.environ.get("ASCEND_USE_FIA") == fia


def test_each_warning_comes_once_and_each_setting_every_time(
    launch_guards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        arguments = _arguments(LATE, enable_torch_compile=True)
        launch_guards.apply(arguments)
        assert vars(arguments) == {name: SAFE[name] for name in LATE}
    assert len(caplog.messages) == 2
    assert len({*caplog.messages}) == 2


@pytest.mark.usefixtures("capturing")
def test_asking_enables_nothing(launch_guards: Any) -> None:
    launch_guards.apply(_arguments(EARLY))
    assert torch_npu.handlers == {}
    assert extension.calls == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(Config(), OFF, id="resolved"),
        pytest.param(Config(Phase("disabled"), Phase("breakable")), OFF, id="prefill is left"),
        pytest.param(
            None,
            {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}},
            id="not resolved yet",
        ),
        pytest.param(
            {"decode": {"backend": "full", "max_bs": 8}},
            {
                "decode": {"backend": "disabled", "max_bs": 8},
                "prefill": {"backend": "disabled"},
            },
            id="given explicitly and not resolved yet",
        ),
    ],
)
def test_the_configuration_of_graphs_ends_off(
    launch_guards: Any, caplog: pytest.LogCaptureFixture, given: Any, expected: Any
) -> None:
    arguments = SimpleNamespace(disable_cuda_graph=False, cuda_graph_config=given)
    launch_guards.apply(arguments)
    assert arguments.cuda_graph_config == expected
    assert "cuda_graph_config[prefill].backend=disabled" in caplog.text
    assert arguments.cuda_graph_config is not given


def test_a_configuration_that_is_off_is_not_mentioned(
    launch_guards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = SimpleNamespace(disable_cuda_graph=True, cuda_graph_config=OFF)
    assert launch_guards.decide(arguments) == {}
    assert caplog.messages == []


@pytest.mark.usefixtures("capturing")
def test_the_configuration_stays_where_graphs_can_be_renewed(launch_guards: Any) -> None:
    locked: set[tuple[str, str]] = set()
    arguments = SimpleNamespace(cuda_graph_config=Config(), _cuda_graph_config_locked=locked)
    launch_guards.apply(arguments)
    assert arguments.cuda_graph_config == Config()
    assert locked == set()


def test_later_steps_find_the_phases_chosen(launch_guards: Any) -> None:
    locked = {("decode", "max_bs")}
    view = View(cuda_graph_config=Config(), _cuda_graph_config_locked=locked)
    launch_guards.decide(view)
    assert locked == {("decode", "max_bs"), ("decode", "backend"), ("prefill", "backend")}


def test_deciding_assigns_nothing(launch_guards: Any) -> None:
    config = Config()
    view = View(disable_cuda_graph=False, enable_torch_compile=True, cuda_graph_config=config)
    assert launch_guards.decide(view) == {
        "disable_cuda_graph": True,
        "enable_torch_compile": False,
        "cuda_graph_config": OFF,
    }
    assert config == Config()
    assert os.environ["HCCL_DETERMINISTIC"] == "strict"


def test_what_was_declared_before_does_not_come_back(launch_guards: Any) -> None:
    declared = [("model", {"disable_cuda_graph": False})]
    arguments = SimpleNamespace(disable_cuda_graph=False, _resolved_overrides=declared)
    launch_guards.apply(arguments)
    for _, changes in declared:
        vars(arguments).update(changes)
    assert arguments.disable_cuda_graph is True


ASCEND = {"attention_backend": "ascend"}


@pytest.mark.parametrize(
    ("source", "backends", "said"),
    [
        pytest.param("out, _ = torch_npu.{}(q, k)", ASCEND, True, id="called"),
        pytest.param("torch_npu.{}.out(q, k)", ASCEND, True, id="an overload is called"),
        pytest.param("torch.ops.npu.{}(\n    q\n)", {}, True, id="no backend is known"),
        pytest.param(
            "torch_npu.{}(q)",
            {"attention_backend": "triton", "decode_attention_backend": "ascend"},
            True,
            id="ascend decodes only",
        ),
        pytest.param("torch_npu.{}(q)", {"attention_backend": "triton"}, False, id="not ascend"),
        pytest.param("# {} is newer", ASCEND, False, id="mentioned only"),
        pytest.param("torch_npu.{}_more(q)", ASCEND, False, id="another operator"),
        pytest.param("x = 1", ASCEND, False, id="not there"),
    ],
)
def test_an_operator_that_nothing_replaces_is_said(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    backends: dict[str, str],
    said: bool,
) -> None:
    operator = "npu_fused_infer_attention_score_v2"
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "backend.py").write_text(source.format(operator), "utf-8")
    monkeypatch.setattr(launch_guards, "__file__", str(tmp_path / "ours" / "launch_guards.py"))
    for _ in range(2):
        launch_guards.apply(SimpleNamespace(**backends))
    assert [operator in message for message in caplog.messages] == [True] * said


def test_a_source_that_cannot_be_read_is_doubt(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "backend.py").write_bytes(b"\xff")
    monkeypatch.setattr(launch_guards, "__file__", str(tmp_path / "ours" / "launch_guards.py"))
    launch_guards.apply(SimpleNamespace(**ASCEND))
    assert "npu_fused_infer_attention_score_v2" in caplog.text


V2 = "npu_fused_infer_attention_score_v2"
BY_SIZE = f"def _can_use_tnd(layer): ...\ntorch_npu.{V2}(q)"
DENSE = {"hidden_size": 1024, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("model", "source", "said"),
    [
        pytest.param({**DENSE, "num_attention_heads": 16}, BY_SIZE, "the size 64", id="small"),
        pytest.param({**DENSE, "head_dim": 64}, BY_SIZE, "the size 64", id="a size that is stated"),
        pytest.param({"text_config": {"head_dim": 80}}, BY_SIZE, "the size 80", id="nested"),
        pytest.param(DENSE, BY_SIZE, None, id="heads of 128"),
        pytest.param({"head_dim": 64}, f"torch_npu.{V2}(q)", None, id="before sizes matter"),
        pytest.param({"head_dim": 64}, "_can_use_tnd = 1", None, id="a tree that never calls it"),
        pytest.param({**DENSE, "sliding_window": 128}, BY_SIZE, "sliding window", id="window"),
        pytest.param(
            {**DENSE, "sliding_window": 128, "use_sliding_window": False}, BY_SIZE, None,
            id="a window that is not used",
        ),
        pytest.param(
            {**DENSE, "layer_types": ["full_attention", "sliding_attention"]}, BY_SIZE,
            "sliding window", id="layers with a window",
        ),
        pytest.param({**DENSE, "attention_sink_bias": True}, BY_SIZE, "sinks", id="sinks"),
        pytest.param({**DENSE, "kv_lora_rank": 512}, BY_SIZE, "MLA", id="latent"),
        pytest.param({"hidden_size": 8}, BY_SIZE, "the size None", id="a size that is not known"),
        pytest.param([], BY_SIZE, "depending on the model", id="no configuration"),
        pytest.param(None, BY_SIZE, "depending on the model", id="no file"),
    ],
)  # fmt: skip
def test_whether_this_model_runs_what_nothing_replaces(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    model: Any,
    source: str,
    said: str | None,
) -> None:
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "backend.py").write_text(source, "utf-8")
    if model is not None:
        (tmp_path / "config.json").write_text(json.dumps(model), "utf-8")
    monkeypatch.setattr(launch_guards, "__file__", str(tmp_path / "ours" / "launch_guards.py"))
    launch_guards.apply(SimpleNamespace(**ASCEND, model_path=str(tmp_path)))
    messages = [m for m in caplog.messages if "npu_fused_infer_attention_score_v2" in m]
    assert len(messages) == (said is not None)
    assert said is None or said in messages[0]


def test_a_model_of_a_hub_is_known_by_what_is_loaded(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class PretrainedConfig:
        @staticmethod
        def get_config_dict(name: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            assert (name, options) == ("a/b", {"revision": "r", "local_files_only": True})
            return {"head_dim": 64}, {}

    hub = SimpleNamespace(PretrainedConfig=PretrainedConfig)
    monkeypatch.setitem(sys.modules, "transformers", hub)
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "backend.py").write_text(BY_SIZE, "utf-8")
    monkeypatch.setattr(launch_guards, "__file__", str(tmp_path / "ours" / "launch_guards.py"))
    launch_guards.apply(SimpleNamespace(**ASCEND, model_path="a/b", revision="r"))
    assert "because its heads have the size 64" in caplog.text
