"""What fails on a native release is a gap that is known, and the page of defects says so."""

from __future__ import annotations

import pytest

from tests.upstream.native_defects import PAGE, cells, failing, row, verified
from tests.upstream.releases import RELEASES_NATIVE

SAMPLE = (RELEASES_NATIVE[0], RELEASES_NATIVE[-1])


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
def test_failures_and_gaps_agree(version: str) -> None:
    run = verified(version)
    known = cells(version, run)
    assert {check["gap"] for check in failing(run)} == known.keys()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    column = table[0].index(version)
    written = {
        line[0].strip("`"): line[column]
        for line in table[1:]
        if line[column] and "-" * 3 not in line
    }
    assert written == known


def test_every_native_release_has_its_column() -> None:
    assert row(["gap", "closed by", *RELEASES_NATIVE]) in PAGE.read_text(encoding="utf-8")
