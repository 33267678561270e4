"""List the mutants that no check needs to find, each with the reason why it is no fault.

A mutant is named by its key, which is that of `tests.faults.mutants`.
"""

from __future__ import annotations

REASONS: dict[str, tuple[str, ...]] = {
    "The order of a list that is only asked whether it holds something says nothing.": (
        'server_args.py module: "triton", "ascend" -> "ascend", "triton"',
        'server_args.py module: "triton", "ascend" -> "ascend", "triton" #2',
    ),
}

EQUIVALENT = {key: reason for reason, keys in REASONS.items() for key in keys}
