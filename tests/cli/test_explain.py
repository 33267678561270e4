from __future__ import annotations

import pytest

from sgl_npu_patch.codemods.upstream.gaps import GAPS
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


def test_explains_a_gap_with_its_seam_and_releases() -> None:
    gap = GAPS["top_p_dtype"]
    said = run("explain", gap.name).stdout.decode()
    assert " ".join(said.split()).startswith(f"{gap.name} {'=' * len(gap.name)} {gap.meaning}")
    assert max(map(len, said.splitlines())) <= 100
    assert said.endswith(f"A gap of sampler, in SGLang {gap.since} to {gap.until}.\n")
    still_open = run("explain", "fused_attention_v2_not_replaced").stdout.decode()
    assert still_open.endswith(" and later.\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("top_p_dtipe", "; the nearest is top_p_dtype\n"),
        ("npu_op", "; the nearest is npu_ops\n"),
        ("qqqq", f"; seams are {', '.join(SEAMS)}\n"),
    ],
)
def test_unknown_name_is_a_usage_error(name: str, said: str) -> None:
    done = run("explain", name)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr == f"sgl-npu-patch: no such seam or gap: {name}{said}"
