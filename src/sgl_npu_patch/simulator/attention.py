"""The arithmetic of npu_fused_infer_attention_score, one sequence at a time, on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SUPPORTED = {
    "atten_mask",
    "actual_seq_lengths",
    "actual_seq_lengths_kv",
    "block_table",
    "block_size",
    "num_heads",
    "num_key_value_heads",
    "scale",
    "input_layout",
    "sparse_mode",
    "pre_tokens",
    "next_tokens",
    "inner_precise",
    "softmax_lse_flag",
    "workspace",
    "out",
    "query_rope",
    "key_rope",
}
_CAUSAL = (2, 3)

Bits = Callable[[torch.Tensor, int, int], torch.Tensor]
"""Takes the result of a sequence, its number of queries and of keys; returns other last bits."""


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    bits: Bits = lambda result, queries, keys: result,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return attention, log-sum-exp (empty unless asked for) and the number of sequences.

    Layouts BSH, BSND, BNSD and TND; keys and values dense or paged through `block_table`; a boolean
    `atten_mask` over (query, key) positions that is true where nothing is attended to;
    `sparse_mode` 0, or 2 and 3 for causal from the top left and from the bottom right; the rotated
    part of heads apart, in `query_rope` and `key_rope`. Raises NotImplementedError for any other
    option.
    """
    unknown = {name for name, given in options.items() if given is not None} - _SUPPORTED
    if unknown:
        raise NotImplementedError(f"the simulated attention does not know {sorted(unknown)}")
    layout = options.get("input_layout", "BSH")
    heads = options.get("num_heads", 1)
    kv_heads = options.get("num_key_value_heads", 0) or heads
    scale = options.get("scale", 1.0)
    mask = options.get("atten_mask")
    mode = options.get("sparse_mode", 0)
    lengths = options.get("actual_seq_lengths_kv")

    def queries_of(tensor: torch.Tensor) -> list[torch.Tensor]:
        return _sequences(tensor, layout, heads, options.get("actual_seq_lengths"))

    def keys_of(tensor: torch.Tensor) -> list[torch.Tensor]:
        if options.get("block_table") is not None:
            return _pages(tensor, kv_heads, options["block_table"], lengths)
        return _sequences(tensor, layout, kv_heads, lengths)

    queries, keys, values = queries_of(query), keys_of(key), keys_of(value)
    if options.get("query_rope") is not None:
        queries = _beside(queries, queries_of(options["query_rope"]))
        keys = _beside(keys, keys_of(options["key_rope"]))
    attended: list[torch.Tensor] = []
    sums: list[torch.Tensor] = []
    for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        hidden = _hidden(q.shape[0], k.shape[0], mode, _mask_of(mask, number))
        result, lse = _one(q, k, v, scale, hidden)
        attended.append(bits(result.to(query.dtype), q.shape[0], k.shape[0]).double())
        sums.append(lse)
    output = _joined(attended, query, layout)
    lse = torch.cat(sums) if options.get("softmax_lse_flag") else torch.empty(0)
    return output, lse, len(attended)


def _beside(parts: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    """Put the two parts of each sequence's heads together."""
    return [torch.cat(pair, -1) for pair in zip(parts, others, strict=True)]


def _one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from (tokens, heads, width) to keys and values of fewer or as many heads."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (
        t.double().transpose(0, 1).contiguous()
        for t in (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
    )
    # A product a query, so that neither the other queries nor the alignment can show in its bits.
    scores = torch.stack([(k * row[:, None]).sum(-1) for row in q.unbind(1)], 1) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    rows = [(v * row[:, :, None]).sum(1) for row in weights.unbind(1)]
    return torch.stack(rows), torch.logsumexp(scores, -1).T.float()


def _sequences(
    tensor: torch.Tensor, layout: str, heads: int, lengths: list[int] | None
) -> list[torch.Tensor]:
    """Split into (tokens, heads, width) a sequence; lengths of TND are cumulative."""
    if layout == "TND":
        ends = list(lengths) if lengths is not None else [tensor.shape[0]]
        return [tensor[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if layout == "BSH":
        tensor = tensor.reshape(*tensor.shape[:2], heads, tensor.shape[2] // heads)
    elif layout == "BNSD":
        tensor = tensor.transpose(1, 2)
    elif layout != "BSND":
        raise NotImplementedError(f"the simulated attention does not know the layout {layout}")
    ends = list(lengths) if lengths is not None else [tensor.shape[1]] * tensor.shape[0]
    return [sequence[:end] for sequence, end in zip(tensor, ends, strict=True)]


def _pages(
    cache: torch.Tensor, heads: int, table: torch.Tensor, lengths: list[int] | None
) -> list[torch.Tensor]:
    """Gather a cache of shape (pages, page size, heads * width) into one tensor a sequence."""
    if lengths is None:
        raise RuntimeError("a paged cache needs actual_seq_lengths_kv")
    room = table.shape[1] * cache.shape[1]
    if any(length > room for length in lengths):
        raise RuntimeError(
            f"{table.shape[1]} pages of {cache.shape[1]} tokens do not hold {max(lengths)} keys"
        )
    pages = cache.reshape(cache.shape[0], cache.shape[1], heads, -1)
    return [
        pages[blocks[: -(-length // cache.shape[1])].long()].flatten(0, 1)[:length]
        for blocks, length in zip(table, lengths, strict=True)
    ]


def _mask_of(mask: torch.Tensor | None, number: int) -> torch.Tensor | None:
    if mask is None:
        return None
    mask = mask.bool()
    if mask.dim() == 2:
        return mask
    own = mask[min(number, mask.shape[0] - 1)]
    return own.reshape(-1, *own.shape[-2:])[-1]


def _hidden(queries: int, keys: int, mode: int, mask: torch.Tensor | None) -> torch.Tensor | None:
    if mode in _CAUSAL:
        offset = keys - queries if mode == 3 else 0
        return torch.ones(queries, keys, dtype=torch.bool).triu(offset + 1)
    if mode != 0:
        raise NotImplementedError(f"the simulated attention does not know sparse_mode {mode}")
    return None if mask is None else mask[:queries, :keys]


def _joined(parts: list[torch.Tensor], query: torch.Tensor, layout: str) -> torch.Tensor:
    """Put the sequences back into the query's layout; what lies past a length is zero."""
    if layout == "TND":
        joined = torch.zeros(*query.shape[:2], parts[0].shape[-1], dtype=torch.double)
        torch.cat(parts, out=joined[: sum(part.shape[0] for part in parts)])
        return joined.to(query.dtype)
    tokens = query.shape[2 if layout == "BNSD" else 1]
    joined = torch.zeros(len(parts), tokens, *parts[0].shape[1:], dtype=torch.double)
    for sequence, part in zip(joined, parts, strict=True):
        sequence[: part.shape[0]] = part
    if layout == "BSH":
        joined = joined.flatten(2)
    elif layout == "BNSD":
        joined = joined.transpose(1, 2)
    return joined.contiguous().to(query.dtype)
