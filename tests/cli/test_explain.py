from __future__ import annotations

import pytest

from tests.engine.package import run
from tests.upstream.program import SEAMS


@pytest.mark.parametrize("seam", SEAMS)
def test_says_why_where_and_when_it_ends(seam: str) -> None:
    done = run("explain", seam)
    assert (done.code, done.stderr) == (0, "")
    said = done.stdout.decode()
    assert said.startswith(f"{seam}\n{'=' * len(seam)}\n\n")
    for part in ("**Why**", "**Where**", "**Upstream**", "**Ends when**"):
        assert part in said


def test_names_what_a_seam_needs() -> None:
    said = run("explain", "batch_invariant").stdout.decode()
    assert said.endswith("Needs: npu_ops, device_dispatch (where it applies).\n")


def test_unknown_seam_is_a_usage_error() -> None:
    done = run("explain", "nothing")
    assert (done.code, done.stdout) == (2, b"")
    assert f"no such seam: nothing; seams are {SEAMS[0]}, " in done.stderr
