"""What is kept of a model's shape where a tiny one is made like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.verify.server.models import FAMILIES, WIDTH, read_config, shrunk
from tests.engine.package import run
from tests.verify.checked import lay_out, patched

DENSE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "rope_scaling": {"type": "yarn", "factor": 40},
}


def test_a_dense_model() -> None:
    assert shrunk(DENSE) == {
        "model_type": "qwen2",
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
    }


def test_a_latent_model_of_experts_keeps_heads_experts_and_rotation() -> None:
    found = shrunk(LATENT)
    changed = {name for name, value in found.items() if LATENT.get(name) != value}
    assert changed == {
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "q_lora_rank",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "first_k_dense_replace",
    }
    # A dense layer and one of experts; as many heads of keys as of queries.
    assert (found["first_k_dense_replace"], found["num_hidden_layers"]) == (1, 2)
    assert found["num_attention_heads"] == found["num_key_value_heads"]


def test_a_size_of_heads_that_is_stated_is_kept() -> None:
    assert shrunk({**DENSE, "head_dim": 128})["head_dim"] == 128


def test_there_is_a_layer_of_each_kind() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    found = shrunk({**DENSE, "num_hidden_layers": 24, "layer_types": kinds * 4})
    assert (found["num_hidden_layers"], found["layer_types"]) == (6, kinds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"hidden_size": None}, ""),
    ],
)
def test_models_that_are_refused(change: dict[str, Any], said: str) -> None:
    config = {name: value for name, value in {**DENSE, **change}.items() if value is not None}
    with pytest.raises(Refused, match=said or "lacks hidden_size"):
        shrunk(config)


def test_a_model_of_text_and_images_is_told_where_its_text_is() -> None:
    with pytest.raises(Refused, match="under text_config"):
        shrunk({"model_type": "qwen3_vl", "text_config": DENSE})


def test_families_have_heads_of_both_sizes() -> None:
    sizes = {values["head_dim"] for values in FAMILIES.values()}
    assert sizes == {64, 128}
    assert {values["model_type"] for values in FAMILIES.values()} >= {"qwen3_moe", "deepseek_v2"}


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_that_is_no_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=r"is no config\.json"):
        read_config(tmp_path / "config.json")


def test_the_command_takes_one_model(tmp_path: Path) -> None:
    tree = lay_out(patched(), tmp_path / "tree")
    config = tmp_path / "config.json"
    assert run("verify", tree, "--config", config).code == 2
    assert run("verify", tree, "--server", "--config", config, "--model", "qwen3").code == 2
    assert run("verify", tree, "--server", "--config", config).code == 4
    config.write_text(json.dumps({**DENSE, "quantization_config": {"bits": 8}}), encoding="utf-8")
    done = run("verify", tree, "--server", "--config", config)
    assert (done.code, "quantised" in done.stderr) == (4, True)
