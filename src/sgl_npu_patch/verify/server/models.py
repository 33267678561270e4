"""Make tiny models with random weights and a tokenizer, of the families that run on Ascend."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

VOCABULARY = 512
CONTEXT = 8192


class Family(NamedTuple):
    """The name of a configuration of transformers, and the size of a head."""

    name: str
    head: int


FAMILIES = {
    "qwen3": Family("Qwen3", 128),
    "qwen2": Family("Qwen2", 64),
    "llama": Family("Llama", 64),
}
"""Qwen3 has norms of its heads, and Qwen2 biases of its projections."""
DEFAULT = "qwen3"


def make(family: str, folder: Path, *, seed: int = 1) -> Path:
    """Write a model into a folder, and return the folder."""
    import torch
    import transformers

    name, head = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                value.normal_(0, 0.2)
            elif "norm" in key:
                value.normal_(1, 0.1)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """Return a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    known = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"<{number}>" for number in range(VOCABULARY - len(known))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, begin, end = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end
    )
