"""Kernels whose bits may follow the batch although nothing is wrong with a patched tree.

Some have no batch-invariant counterpart. Others have one that promises less than a whole server
needs. What the simulated ones do for that reason is noted, and can be switched off: where a request
then gets the same answer in any company, the tree does what it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sgl_npu_patch.simulator.device import in_last_bits, moved

SPLIT = 64
"""Over how many keys a part of attention goes that is added up by itself."""

noted: set[str] = set()
"""What was called since this was cleared, in words."""

_kind: list[None] = []
_cutting: list[None] = []


def cut_attention() -> None:
    """Let attention follow, until the process ends, what each call of it computes at once."""
    _cutting.append(None)


@contextmanager
def covered() -> Iterator[None]:
    """Let all of these kernels work row by row."""
    _kind.append(None)
    try:
        yield
    finally:
        _kind.pop()


def unreplaced(name: str, result: torch.Tensor, batch: int) -> torch.Tensor:
    """Return the result of a kernel that nothing replaces, with bits that follow the batch."""
    noted.add(f"{name}, which nothing makes batch-invariant")
    return result if _kind else in_last_bits(result, batch)


def by_cut(name: str, rows: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """Return rows of attention with bits that follow how many of a sequence's one call computes.

    That depends on where a prompt is cut into chunks, what of it is in the cache, and whether a
    token is computed again. Neither depends on how many sequences there are, or on others' lengths.
    """
    if not _cutting:
        return rows
    noted.add(f"{name}, which is free to follow how a sequence is cut into calls")
    return rows if _kind else moved(rows, (queries.bit_length() + keys // SPLIT) % 8)
