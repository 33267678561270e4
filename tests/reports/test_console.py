"""Test how tables and paragraphs are printed."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from sgl_npu_patch.reports.console import printed


def test_no_line_ends_in_blanks_whatever_colours_stand_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    line = Text.assemble("a", (" ", "bold"), " ", (" ", "red"), "\n", ("b ", "bold"))
    shown = printed(io.StringIO(), lambda console: console.print(line, style="bold"))
    assert "\x1b[" in shown
    assert Text.from_ansi(shown).plain == "a\nb\n"
    assert " " not in shown
