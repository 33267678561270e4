"""Read what SGLang's own determinism test prints: its exit code is 0 whatever it finds.

`python -m sglang.test.test_deterministic` has the modes single, prefix, radix_cache and p_vs_d;
each prints other sentences, which changed between releases. What is read here is the same in all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLES = re.compile(r"total samples: (\d+), unique samples: (\d+)", re.IGNORECASE)
"""The texts that one prompt got; a single one, or none, is compared with nothing."""
_EQUAL_LOGPROBS = re.compile(r"✓ All (\d+) samples have identical logprobs")
_OTHER_LOGPROBS = re.compile(r"✗ Found \d+ mismatches")
_PAIR = re.compile(r"^\W*(?:Token|Logprobs) (match|mismatch)\b")
"""In p_vs_d, of one sequence that was decoded and then prefilled."""
_RADIX_CACHE = re.compile(r"TEST (PASSED|FAILED)")
_ERROR = re.compile(r"^(?:Error: |[\w.]*(?:Error|Exception): )")
"""An answer of the server that is none, or what ended the test."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What one run of the test found.

    Attributes:
        compared: how many comparisons it made.
        different: the lines that tell of a difference.
        errors: the lines that tell why it did not do all that it was asked.
    """

    compared: int
    different: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Report whether everything was compared and equal; a run that compares nothing fails."""
        return self.compared > 0 and not self.different and not self.errors


def read(printed: str) -> Printed:
    """Return what the test found by what it printed, in any of its modes."""
    compared = 0
    different = []
    errors = []
    for line in printed.splitlines():
        equal = _equal(line)
        compared += equal is not None
        if equal is False:
            different.append(line.strip())
        if _ERROR.match(line):
            errors.append(line.strip())
    return Printed(compared, tuple(different), tuple(errors))


def _equal(line: str) -> bool | None:
    """Report whether what a line compares is equal; None if it compares nothing."""
    if found := _SAMPLES.search(line):
        return None if int(found[1]) < 2 else int(found[2]) == 1
    if found := _EQUAL_LOGPROBS.search(line):
        return True
    if found := _OTHER_LOGPROBS.search(line):
        return False
    if found := _PAIR.search(line):
        return found[1] == "match"
    if found := _RADIX_CACHE.search(line):
        return found[1] == "PASSED"
    return None
