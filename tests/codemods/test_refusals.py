"""Every seam refuses what it cannot show to be right, with evidence that is complete."""

from __future__ import annotations

import pytest

from sgl_npu_patch.codemods import SERIES
from tests.codemods.refusals import REFUSALS
from tests.helpers import check_conflict

CASES = [(seam, name) for seam, sources in REFUSALS.items() for name in sources]


@pytest.mark.parametrize(("seam", "name"), CASES, ids=lambda part: part)
def test_refused_with_complete_evidence(seam: str, name: str) -> None:
    """`check_conflict` demands the size, all parts and that nothing is written."""
    outcome = check_conflict(seam, REFUSALS[seam][name], match="")
    evidence = outcome.evidence
    assert evidence is not None
    assert evidence.where
    assert all(site.symbol for site in evidence.where)
    if "renamed" in name and "test" not in name and evidence.found == "none":
        assert "is not taken" in evidence.nearest


@pytest.mark.parametrize("seam", SERIES)
def test_every_seam_refuses_at_least_eight_sources(seam: str) -> None:
    assert len(REFUSALS[seam]) >= 8
