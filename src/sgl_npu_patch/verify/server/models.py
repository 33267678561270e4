"""Make tiny models with random weights and a tokenizer: of a family, or of a model's own shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgl_npu_patch.engine.errors import Refused

Model = str | Mapping[str, Any]
"""A family, or what transformers' configuration of a model is given."""

VOCABULARY = 512
CONTEXT = 8192
WIDTH = 64
_MOST_LAYERS = 8
_LATENT_HEADS = 8
"""Fewer than eight of MLA run another operator in decode."""

_WHOLE: Mapping[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
}
_EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": WIDTH, "num_experts_per_tok": 2}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    # Norms of its heads, which are rotated in the same kernel.
    "qwen3": {**_WHOLE, "model_type": "qwen3", "head_dim": 128},
    # Biases of its projections; 64 as in Qwen2.5-0.5B, 128 as in the larger ones.
    "qwen2": {**_WHOLE, "model_type": "qwen2", "head_dim": 64},
    "qwen2-128": {**_WHOLE, "model_type": "qwen2", "head_dim": 128},
    # 64 as in Llama-3.2-1B, 128 as in the larger ones.
    "llama": {**_WHOLE, "model_type": "llama", "head_dim": 64},
    "llama-128": {**_WHOLE, "model_type": "llama", "head_dim": 128},
    "qwen3-moe": {
        **_WHOLE,
        **_EXPERTS,
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "num_experts": 4,
        "norm_topk_prob": True,
    },
    # Attention over one latent head for all, in the sizes of DeepSeek-V2-Lite.
    "deepseek-v2": {
        **_WHOLE,
        **_EXPERTS,
        "model_type": "deepseek_v2",
        "num_attention_heads": _LATENT_HEADS,
        "num_key_value_heads": _LATENT_HEADS,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "head_dim": 64,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": CONTEXT // 2,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    },
}
"""What transformers' configuration of a model of each family is given."""
DEFAULT = "qwen3"

_WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank",
           "shared_expert_intermediate_size")  # fmt: skip
_OF_LAYERS = ("layer_types", "mlp_layer_types", "mlp_only_layers", "no_rope_layers")
_DENSE_FIRST = "first_k_dense_replace"
_LEFT_OUT = ("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version",
             "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "vocab_size",
             "tie_word_embeddings")  # fmt: skip
"""What says how a model was made, or what this one has of its own."""


def read_config(path: Path) -> dict[str, Any]:
    """Read a model's config.json.

    Raises:
        Refused: it is none.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{path} is no config.json of a model: it is not JSON") from error
    if not isinstance(content, dict):
        raise Refused(f"{path} is no config.json of a model: it is not an object")
    return content


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration with few layers and small widths.

    Sizes and kinds of heads, norms, experts and rotation are kept, and a layer of each kind.

    Args:
        config: what the model's config.json holds.

    Raises:
        Refused: the model is quantised, or is not of text alone.
    """
    if config.get("quantization_config"):
        raise Refused("the model is quantised, and a tiny one with random weights cannot be")
    missing = {"model_type", "hidden_size", "num_attention_heads"} - {*config}
    if missing:
        nested = "; pass what it has under text_config" if "text_config" in config else ""
        raise Refused(
            f"no configuration of a text model: it lacks {', '.join(sorted(missing))}{nested}"
        )
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    kept = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    layers = _layers(config)
    few = min(heads, _LATENT_HEADS if config.get("kv_lora_rank") else 2)
    kept |= {
        "num_hidden_layers": layers,
        "num_attention_heads": few,
        "num_key_value_heads": few if groups == heads else 1,
    }
    if not config.get("kv_lora_rank"):
        # The sizes of MLA's heads have names of their own.
        kept["head_dim"] = config.get("head_dim") or config["hidden_size"] // heads
    kept |= {name: WIDTH for name in _WIDTHS if config.get(name)}
    kept |= {name: config[name][:layers] for name in _OF_LAYERS if config.get(name)}
    if config.get(_DENSE_FIRST):
        kept[_DENSE_FIRST] = 1
    return kept


def _layers(config: Mapping[str, Any]) -> int:
    """Return how many of the first layers have one of each kind; some models alternate."""
    kinds = config.get("layer_types") or ()
    each = [[*kinds].index(kind) + 1 for kind in {*kinds}]
    return min(max(2, *each, config.get("decoder_sparse_step") or 1), _MOST_LAYERS)


def make(model: Model, folder: Path, *, vocabulary: int = VOCABULARY, seed: int = 1) -> Path:
    """Write a model into a folder, and return the folder.

    Args:
        vocabulary: how many tokens it has.

    Raises:
        ValueError: transformers does not know the kind of model.
    """
    import torch
    import transformers

    values = {**(FAMILIES[model] if isinstance(model, str) else model)}
    config = transformers.AutoConfig.for_model(
        values.pop("model_type"),
        **values,
        vocab_size=vocabulary,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for key, value in made.named_parameters():
            if key.endswith("bias"):
                value.normal_(0, 0.2)
            elif "norm" in key:
                value.normal_(1, 0.1)
    made.save_pretrained(folder)
    _tokenizer(vocabulary).save_pretrained(folder)
    return folder


def _tokenizer(vocabulary: int) -> Any:
    """Return a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    known = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"<{number}>" for number in range(vocabulary - len(known))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, begin, end = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end
    )
