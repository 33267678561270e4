"""Name the faults of what draws by seed on the sampling backend pytorch."""

from __future__ import annotations

from tests.faults.fault import Fault

_IMPORT = "from sglang.srt.hardware_backend.npu.batch_invariant_ops import seeded_sampling"


def _drawn(found_by: str, *edits: tuple[str, str]) -> Fault:
    """Edit what draws on the backend pytorch."""
    texts = tuple(("seeded_sampling", *edit) for edit in edits)
    return Fault("seeded_sampling", tuple(found_by.split()), texts)


def _handed_over(found_by: str, test: str) -> Fault:
    """Edit when the sampler hands over what nothing is filtered for."""
    body = f"\n        {_IMPORT}\n\n        return seeded_sampling.draw("
    ours = f"    if is_npu() and sampling_seed is not None:{body}"
    edit = ("sampler", ours, f"    if {test}:{body}")
    return Fault("seeded_sampling", tuple(found_by.split()), (edit,))


DRAWN: dict[str, Fault] = {
    "noise by rank": _drawn(
        "neighbours_change_nothing a_neighbour_that_left_changes_nothing",
        ("scatter_(-1, order, ranked)", "copy_(ranked)"),
        (
            "    if not return_filtered_probs:",
            "    tokens = order.gather(-1, tokens.long().view(-1, 1)).view(-1)\n    if 1:",
        ),
    ),
    "a sort that is not stable": _drawn(
        "greedy_takes_the_first_of_ties ties_are_cut_the_same",
        (
            "torch.sort(probs.float(), dim=-1, descending=True, stable=True)",
            "[t.flip(-1) for t in torch.sort(probs.float(), dim=-1, stable=True)]",
        ),
    ),
    "the tail cut by a rounded sum": _drawn(
        "no_top_p_keeps_the_tail sampler_pytorch_filtered",
        ('top_ps.masked_fill(top_ps >= 1.0, float("inf"))', "(top_ps - 1e-3)"),
    ),
    "min-p of the batch's largest": _drawn(
        "neighbours_change_nothing", ("ranked[:, :1] * min_ps", "ranked.max() * min_ps")
    ),
    "the strongest top-k for all": _drawn(
        "neighbours_change_nothing", ("ranks >= top_ks.view(-1, 1)", "ranks >= top_ks.min()")
    ),
    "infinite noise": _drawn("largest_hash_is_an_ordinary_draw", ("max=1.0 - 2.0**-32", "max=1.0")),
    "seeds of 32 bits": _drawn(
        "seed_and_position_matter hashes_are_upstreams",
        ("(seeds, seeds >> 32,", "(seeds, seeds * 0,"),
    ),
    "positions not hashed": _drawn(
        "seed_and_position_matter hashes_are_upstreams",
        ("positions.to(torch.int64)):", "positions.to(torch.int64) * 0):"),
    ),
    "weights without a logarithm": _drawn(
        "draws_follow_the_distribution",
        ("probs.to(torch.float64).log_()", "probs.to(torch.float64)"),
    ),
    "sums by a kernel of the device": _drawn(
        "sampler_pytorch_filtered unmodified",
        ("_running_sums(ranked) - ranked", "torch.cumsum(ranked, dim=-1) - ranked"),
    ),
    "seeded draws handed over off the NPU too": _handed_over(
        "unchanged_off_npu", "sampling_seed is not None"
    ),
    "unseeded draws handed over": _handed_over(
        "unseeded_draws_are_multinomial unseeded_draws_are_the_originals", "is_npu()"
    ),
}
