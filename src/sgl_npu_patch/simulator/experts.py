"""Operators of a mixture of experts: gating, routing, the products of all experts, their sum.

Gating and routing work row by row. The products and the sum have no batch-invariant counterpart,
and depend in the last bits on how many rows an expert, or the batch, has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sgl_npu_patch.simulator.dense import refuse
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.uncovered import unreplaced

_NUMBERS = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}
"""What torch numbers types by, where an operator takes one as an integer."""
_COUNTED = 1
"""The kind of lists of groups, and of counts of tokens, that hold how many rows each expert has."""


def _gating_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    refuse("npu_moe_gating_top_k_softmax", finished=finished is not None)
    host = cpu(x)
    weights, experts = _largest(host.double().softmax(-1), k)
    rows = torch.arange(host.shape[0] * k, dtype=torch.int32).reshape(k, -1).T.contiguous()
    return npu(weights.to(host.dtype)), npu(experts), npu(rows)


def _gating(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    name = "npu_moe_gating_top_k"
    refuse(name, renorm=renorm, out_flag=out_flag, group_count=group_count > 1 and group_count)
    refuse(name, k_group=k_group > 1 and k_group, group_select_mode=group_select_mode)
    host = cpu(x)
    scores = host.double().sigmoid() if norm_type else host.double().softmax(-1)
    biased = scores if bias is None else scores + cpu(bias).double()
    _, experts = _largest(biased, k)
    weights = scores.gather(1, experts.long())
    if norm_type:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    weights = weights * routed_scaling_factor
    return npu(weights.to(host.dtype)), npu(experts), npu(torch.empty(0, dtype=host.dtype))


def _largest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest scores of each row and whose they are, the first among equals."""
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], order[:, :k].to(torch.int32).contiguous()


def _init_routing(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Order rows by their experts, and say where each went and how many each expert has."""
    name = "npu_moe_init_routing_v2"
    refuse(name, scale=scale is not None, offset=offset is not None, drop_pad_mode=drop_pad_mode)
    refuse(name, quantised=quant_mode != -1, row_idx_type=row_idx_type, x_dtype=x_dtype)
    refuse(name, part_of_experts=[*active_expert_range] not in ([], [0, expert_num]))
    refuse(name, expert_tokens_num_type=expert_tokens_num_type != _COUNTED)
    host, experts = cpu(x), cpu(expert_idx).long()
    refuse(name, active_num=active_num not in (-1, experts.numel()) and active_num)
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    rows = host[order // experts.shape[1]]
    places = order.argsort().to(torch.int32)
    counts = torch.bincount(flat, minlength=expert_num)
    return npu(rows), npu(places), npu(counts), npu(torch.empty(0))


def _grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    output_dtype: int | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Multiply the rows of each expert, which follow each other, by its matrix of (in, out)."""
    name = "npu_grouped_matmul"
    refuse(name, **{option: given for option, given in options.items() if given is not None})
    refuse(name, bias=bias is not None, group_list_type=group_list_type not in (0, _COUNTED))
    refuse(name, split_item=split_item not in (2, 3), group_type=group_type != 0)
    refuse(name, tensors=len(x) != 1 or len(weight) != 1 or group_list is None)
    assert group_list is not None
    host, matrices, groups = cpu(x[0]), cpu(weight[0]), cpu(group_list).long()
    counts = groups if group_list_type == _COUNTED else groups.diff(prepend=groups.new_zeros(1))
    refuse(name, output_dtype=output_dtype not in (None, _NUMBERS.get(host.dtype)))
    parts = []
    for rows, matrix in zip(torch.split(host, counts.tolist()), matrices, strict=True):
        product = [row[None].double() @ matrix.double() for row in rows]
        exact = torch.cat([rows.new_zeros(0, matrix.shape[1]).double(), *product])
        parts.append(unreplaced(name, exact.to(host.dtype), max(len(rows), 1)))
    return [npu(torch.cat(parts))]


def _finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
) -> torch.Tensor:
    """Add up what each row's experts gave, times their weights."""
    name = "npu_moe_finalize_routing"
    refuse(name, skip1=skip1 is not None, skip2=skip2 is not None, bias=bias is not None)
    refuse(name, scales=scales is None, drop_pad_mode=drop_pad_mode != 2)
    assert scales is not None
    host, weights = cpu(expanded_permuted_rows), cpu(scales).double()
    parts = host[cpu(expanded_src_to_dst_row).long()].reshape(*weights.shape, -1).double()
    total = (parts * weights[..., None]).sum(1).to(host.dtype)
    return npu(unreplaced(name, total, total.shape[0]))


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_grouped_matmul": _grouped_matmul,
    "npu_moe_finalize_routing": _finalize_routing,
    "npu_moe_gating_top_k": _gating,
    "npu_moe_gating_top_k_softmax": _gating_softmax,
    "npu_moe_init_routing_v2": _init_routing,
}
"""To be installed with `torch_npu.install`."""
