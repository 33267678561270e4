"""Count each token once in the penalties of its request, whatever runs in between.

The overlap scheduler prepares a batch before it has the tokens of the batch before. So
the scheduler's penalizers count every token but a request's newest, and each forward
pass gets a copy of them that counts that one: it is the last token of the pass's input,
known on the device when the pass samples.

A tensor of a penalizer is never changed in place, since a pass that was started earlier
may still read it on another stream. Used on an NPU in deterministic mode only; imports
nothing of torch_npu.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch


def begin(sampling_info: Any) -> None:
    """Put penalties in order, and count what was generated before a retraction."""
    if not _is_deterministic(sampling_info):
        return
    orchestrator = sampling_info.penalizer_orchestrator
    # A set of classes comes in another order in each process.
    ordered = sorted(orchestrator.penalizers.items(), key=lambda item: _place(item[0]))
    orchestrator.penalizers = dict(ordered)
    if not orchestrator.is_required:
        return
    batch = orchestrator.batch
    newest = 1 if follows(sampling_info) else 0
    for row, length in enumerate(_output_lengths(batch)):
        known = list(batch.reqs[row].output_ids[: max(length - newest, 0)])
        if known:
            rows, tokens = _tensors(batch, [row], known)
            for penalizer in orchestrator.penalizers.values():
                _count(penalizer, rows, list(tokens.view(-1, 1).unbind()))


def count(batch: Any) -> bool:
    """Count what is known before a batch decodes; return whether that was done here.

    ``batch`` is a ScheduleBatch whose lengths do not include the coming step.
    """
    orchestrator = batch.sampling_info.penalizer_orchestrator
    if not orchestrator.is_required or not follows(batch.sampling_info):
        return False
    # The newest token is still being sampled, and counted by the forward pass.
    known = {
        row: batch.reqs[row].output_ids[length - 1]
        for row, length in enumerate(_output_lengths(batch))
        if length > 0
    }
    rows, tokens = _tensors(batch, list(known), list(known.values()))
    for penalizer in orchestrator.penalizers.values():
        _count(penalizer, rows, [tokens])
    return True


def follows(sampling_info: Any) -> bool:
    """Return whether the forward passes of a batch count the newest tokens."""
    if not _is_deterministic(sampling_info):
        return False
    batch = sampling_info.penalizer_orchestrator.batch
    return bool(batch.enable_overlap and batch.spec_algorithm.is_none())


def copied(sampling_info: Any) -> Any:
    """Return the copy of a batch's sampling parameters for one forward pass."""
    copy_of_pass = dataclasses.replace(sampling_info, penalizer_orchestrator=None)
    hand_over(sampling_info, copy_of_pass)
    return copy_of_pass


def hand_over(sampling_info: Any, copy_of_pass: Any) -> None:
    """Give a forward pass's copy the penalties, in the place of their sum."""
    orchestrator = sampling_info.penalizer_orchestrator
    if orchestrator.is_required and follows(sampling_info):
        copy_of_pass.penalizer_orchestrator = ForwardPenalizers(orchestrator)
        copy_of_pass.linear_penalty = None


class ForwardPenalizers:
    """Stand for the orchestrator of penalizers in one forward pass."""

    is_required = True

    def __init__(self, orchestrator: Any) -> None:
        batch = orchestrator.batch
        self._penalizers = [copy.copy(p) for p in orchestrator.penalizers.values()]
        # Up to 0.5.12 these are placeholders, replaced in place before the pass begins.
        self._input_ids = batch.input_ids
        lengths = _output_lengths(batch)
        rows = [row for row, length in enumerate(lengths) if length > 0]
        last = list(range(len(lengths)))
        if not batch.forward_mode.is_decode():
            last = torch.tensor(batch.extend_lens).cumsum(0).sub(1).tolist()
        # A plain decoding batch needs no indices, which would have to be copied.
        self._whole = len(rows) == len(self._input_ids)
        if not self._whole:
            self._rows, self._last = _tensors(batch, rows, [last[row] for row in rows])

    def apply(self, logits: torch.Tensor) -> None:
        """Count the last token of the input if that is not done, and change logits."""
        if self._input_ids is not None:
            rows, tokens = None, self._input_ids
            if not self._whole:
                rows, tokens = self._rows, self._input_ids[self._last]
            for penalizer in self._penalizers:
                _count(penalizer, rows, [tokens.to(torch.int64)])
            self._input_ids = None
        for penalizer in self._penalizers:
            penalizer.apply(logits)


def _is_deterministic(sampling_info: Any) -> bool:
    # Every request of such a server has a seed, and none of another server.
    npu = str(sampling_info.device).startswith("npu")
    return npu and sampling_info.sampling_seed is not None


def _place(kind: Any) -> tuple[bool, str]:
    return getattr(kind, "is_multiplicative", False), kind.__name__


def _output_lengths(batch: Any) -> list[int]:
    """Return how many tokens of each request's output are part of its length."""
    lengths = batch.seq_lens_cpu.tolist()
    # An encoder's tokens are part of the prompt, but not of the length.
    encoded = getattr(batch, "encoder_lens_cpu", None) or [0] * len(lengths)
    return [
        lengths[row] + encoded[row] - len(request.origin_input_ids)
        for row, request in enumerate(batch.reqs)
    ]


def _tensors(batch: Any, *lists: list[int]) -> list[torch.Tensor]:
    return [
        torch.tensor(each, dtype=torch.int64).to(batch.device, non_blocking=True)
        for each in lists
    ]


def _count(
    penalizer: Any, rows: torch.Tensor | None, steps: list[torch.Tensor]
) -> None:
    """Count tokens of some rows, all if None, in new tensors of a penalizer."""
    if not penalizer.is_prepared() or (rows is not None and not len(rows)):
        return
    tensors = {k: v for k, v in vars(penalizer).items() if isinstance(v, torch.Tensor)}
    part = copy.copy(penalizer)
    for name, old in tensors.items():
        setattr(part, name, old.clone() if rows is None else old[rows])
    for tokens in steps:
        part.cumulate_output_tokens(tokens)
    for name, old in tensors.items():
        new = getattr(part, name)
        if rows is not None:
            new = old.clone().index_copy_(0, rows, new)
        setattr(penalizer, name, new)
