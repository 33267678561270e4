import torch


class Sampler:
    def forward(self, probs, info):
        if self.backend == "flashinfer":
            return fused(probs)
        elif self.backend == "pytorch":
            return multinomial_with_seed(probs, info.sampling_seed)


def multinomial_with_seed(inputs, seed):
    return torch.argmax(torch.log(inputs + 1e-9) + noise(seed), dim=1)


def top_k_top_p_min_p_sampling_from_probs_torch(
    probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
):
    """Filter and draw."""
    from sglang.srt.utils.common import is_npu

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


def sampling_from_probs_torch(probs):
    """Draw."""
    return torch.argmax(probs / noise(None), dim=1)
