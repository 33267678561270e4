"""launch_guards says by name what a launch asks for that nothing shows to be batch-invariant."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_npu_patch.codemods.upstream.symbols import SUPPORTED
from sgl_npu_patch.npu_ops import launch_guards as guards
from tests.upstream.releases import release_tree


def test_what_the_guards_know_of_sglang_is_what_sglang_has() -> None:
    """The module stands alone in SGLang's tree, so that it names these things again."""
    assert SUPPORTED.names == (guards._CACHED,)
    assert SUPPORTED.modules == guards._LISTED_IN
    package = release_tree("0.5.23") / "sglang" / "srt"
    files = [package / "server_args.py", *sorted((package / "arg_groups").glob("*.py"))]
    arguments = "\n".join(file.read_text("utf-8") for file in files)
    read = {name: f".{name}" in arguments for name in guards._UNSHOWN_ARGUMENTS}
    assert read == dict.fromkeys(guards._UNSHOWN_ARGUMENTS, True)
    attention = (package / "hardware_backend/npu/attention/ascend_backend.py").read_text("utf-8")
    assert f"def {guards._BY_HEAD_SIZE}(" in attention


@pytest.mark.parametrize(
    ("arguments", "model", "said"),
    [
        ({}, {}, []),
        ({"kv_cache_dtype": "auto", "enable_lora": False, "quantization": None}, {}, []),
        ({"quantization": "w8a8_int8"}, {}, ["quantised weights"]),
        ({}, {"quantization_config": {"bits": 8}}, ["quantised weights"]),
        ({"quantization": "awq"}, {"quantization_config": {"bits": 8}}, ["quantised weights"]),
        ({"kv_cache_dtype": "fp8_e4m3"}, {}, ["a key-value cache of another type"]),
        ({"enable_lora": True}, {}, ["LoRA"]),
        ({"speculative_algorithm": "EAGLE"}, {}, ["speculative decoding"]),
        ({}, {"num_experts": 128}, ["a mixture of experts"]),
        ({}, {"num_local_experts": 0}, []),
        (
            {},
            {"n_routed_experts": 64, "kv_lora_rank": 512},
            ["a mixture of experts", "latent attention (MLA)"],
        ),
        (
            {},
            {"vision_config": {"depth": 1}, "text_config": {"num_experts": 8}},
            ["a mixture of experts", "input other than text"],
        ),
    ],
)
def test_what_nothing_shows_to_hold_is_said_by_name(
    launch_guards: Any,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    arguments: dict[str, Any],
    model: dict[str, Any],
    said: list[str],
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
    given = SimpleNamespace(model_path=str(tmp_path), attention_backend="triton", **arguments)
    for _ in range(2):
        launch_guards.apply(given)
    found = [re.match(r"Nothing shows that (.*) is batch-invariant", m) for m in caplog.messages]
    assert [match[1] for match in found if match] == said
