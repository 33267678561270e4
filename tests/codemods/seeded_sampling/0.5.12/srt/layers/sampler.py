from typing import Optional

import torch

from sglang.srt.layers.hashing import noise_bits
from sglang.srt.utils.common import is_npu

if is_npu():
    import torch_npu


class Sampler(torch.nn.Module):
    def forward(self, out, info, return_logprob, positions):
        logits = out.logits
        simple = not info.filters
        if self.use_ascend_backend:
            ids, logprobs = self._forward_ascend_backend(
                logits, info, simple, return_logprob
            )
        else:
            ids, logprobs = draw_elsewhere(logits, info), None
        return ids, logprobs

    def _sample_from_logits(
        self,
        logits: torch.Tensor,
        info,
        simple: bool,
    ) -> torch.Tensor:
        if simple:
            probs = torch.softmax(logits, dim=-1)
            ids = torch.multinomial(probs, num_samples=1).view(-1)
            return ids.to(torch.int32)
        else:
            ids = top_k_top_p_min_p_sampling_from_logits_ascend(
                logits,
                info.top_ks,
                info.top_ps,
                info.min_ps,
                info.need_min_p_sampling,
            )
            return ids.to(torch.int32)

    def _forward_ascend_backend(self, logits, info, simple, return_logprob):
        logits.div_(info.temperatures)
        ids = self._sample_from_logits(logits, info, simple)
        return ids, torch.log_softmax(logits, dim=-1) if return_logprob else None


def top_k_top_p_min_p_sampling_from_logits_ascend(
    logits: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
):
    if hasattr(torch_npu, "npu_top_k_top_p") and torch.all(top_ks <= 1024):
        fused = torch_npu.npu_top_k_top_p(logits, top_ps, top_ks)
        kept = fused.softmax(dim=-1)
        if need_min_p_sampling:
            floor = kept.max(dim=-1) * min_ps
            kept.masked_fill_(kept < floor.view(-1, 1), 0.0)
        ids = torch.multinomial(kept, num_samples=1)
    else:
        probs = torch.softmax(logits, dim=-1)
        ranked, order = probs.sort(dim=-1, descending=True)
        total = torch.cumsum(ranked, dim=-1)
        ranked.masked_fill_(total - ranked > top_ps.view(-1, 1), 0.0)
        rank = torch.multinomial(ranked, num_samples=1)
        ids = torch.gather(order, dim=1, index=rank)
    return ids.view(-1)


@torch.compile(dynamic=True)
def multinomial_with_seed(logprobs, seed, positions):
    columns = torch.arange(logprobs.shape[1], device=logprobs.device)
    bits = noise_bits(seed, positions, columns)
    u = bits.to(torch.float64) / torch.iinfo(torch.uint32).max
    u.log_().neg_()
    u.log_().neg_()
    u.add_(logprobs.to(torch.float64))
    return torch.argmax(u, dim=1, keepdim=True)


def top_k_top_p_min_p_sampling_from_probs_torch(
    probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
):
    """Filter and draw."""
    if is_npu() and sampling_seed is not None:
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import seeded_sampling

        return seeded_sampling.draw_filtered(
            probs,
            top_ks,
            top_ps,
            min_ps,
            sampling_seed,
            positions,
        )
    ranked, order = probs.sort(dim=-1, descending=True)
    ids = torch.gather(order, 1, drawn(ranked, sampling_seed, positions))
    return ids.view(-1)


def sampling_from_probs_torch(probs, sampling_seed=None, positions=None):
    """Draw."""
    if is_npu() and sampling_seed is not None:
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import seeded_sampling

        return seeded_sampling.draw(probs, sampling_seed, positions)
    ids = drawn(probs, sampling_seed, positions)
    return ids.view(-1).to(torch.int32)
