"""What SGLang's determinism test prints is read as it is meant, in the words of every release."""

from __future__ import annotations

import pytest

from sgl_npu_patch.accept.printed import read


@pytest.mark.parametrize(
    ("printed", "compared", "different", "errors"),
    [
        ("Trial 1: x\nTotal samples: 3, Unique samples: 1", 1, 0, 0),
        ("Total samples: 3, Unique samples: 2", 1, 1, 0),
        # A prompt that was sent once or never.
        ("Prompt 0: total samples: 1, Unique samples: 1", 0, 0, 0),
        ("Prompt 0: total samples: 0, Unique samples: 0", 0, 0, 0),
        ("Prompt 0: total samples: 4, Unique samples: 1\n  ✓ All 4 samples have identical logprobs",
         2, 0, 0),
        (("Prompt 0: total samples: 4, Unique samples: 1\n  ✗ Sample 2: Logprob mismatch at 1\n"
         "  ✗ Found 1 mismatches out of 4 samples\n✗✗✗ Some logprobs differ ✗✗✗"), 2, 1, 0),
        ("  Token ID match: ✗ NO\n  Logprob match:  ✗ NO\n✓✓✓ TEST PASSED ✓✓✓", 1, 0, 0),
        ("✗✗✗ TEST FAILED ✗✗✗", 1, 1, 0),
        ("✅ Token match\n✅ Logprobs match: [None, -1.5]", 2, 0, 0),
        ("Token match: [1, 2]\n❗Logprobs mismatch", 2, 1, 0),
        ("❌ Token mismatch: a=[1]\n❌ Logprobs mismatch", 2, 2, 0),
        ("Total samples: 3, Unique samples: 1\nError: {'object': 'error'}", 1, 0, 1),
        ("Traceback (most recent call last):\nrequests.exceptions.ConnectionError: gone", 0, 0, 1),
        ("", 0, 0, 0),
    ],
)  # fmt: skip
def test_what_is_printed(printed: str, compared: int, different: int, errors: int) -> None:
    found = read(printed)
    assert (found.compared, len(found.different), len(found.errors)) == (
        compared,
        different,
        errors,
    )
    assert found.holds is (compared > 0 and not different and not errors)
