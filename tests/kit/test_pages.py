"""What the pages show of doctor and the kit is what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.pages import PAGES, rerun, without_bits


@pytest.mark.parametrize(
    "page",
    [pytest.param(each, marks=pytest.mark.slow if "kit" in each.name else ()) for each in PAGES],
    ids=lambda page: page.name,
)
def test_the_output_shown_is_printed(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- machine " in text
    assert without_bits(rerun(text)) == without_bits(text)
