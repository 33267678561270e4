"""List the mutants that no check needs to find, each with the reason why it is no fault.

A mutant is named by its key, which is that of `tests.faults.mutants`.
"""

from __future__ import annotations

_CLAMP = "sampler.py multinomial_with_seed:"
_GATE = "Radix cache is disabled: prefill on ascend does not read cached prefixes."

REASONS: dict[str, tuple[str, ...]] = {
    "The order of a list that is only asked whether it holds something says nothing.": (
        'server_args.py module: "triton", "ascend" -> "ascend", "triton"',
        'server_args.py module: "triton", "ascend" -> "ascend", "triton" #2',
    ),
    "The order of named arguments says nothing.": (
        f"{_CLAMP} dynamic=True, disable=is_npu() -> disable=is_npu(), dynamic=True",
    ),
    "A warning in other words is a warning; one that says nothing of the radix cache is found.": (
        f'server_args.py ServerArgs._handle_deterministic_inference: "{_GATE}" -> "{_GATE}x"',
    ),
    "Any bound between the second largest quotient of a hash and 1 keeps the noise finite and in "
    "order; with 2**-31 the three largest of 2**32 hashes give one noise, which no draw shows.": (
        f"{_CLAMP} 2.0 -> 3.0",
        f"{_CLAMP} 32 -> 31",
        f"{_CLAMP} 32 -> 33",
    ),
    "On an NPU nothing is compiled, elsewhere `is_npu()` is false: the first test only keeps "
    "torch.compile from tracing the second.": (
        f"{_CLAMP} not torch.compiler.is_compiling() and is_npu() -> is_npu()",
    ),
}

EQUIVALENT = {key: reason for reason, keys in REASONS.items() for key in keys}
