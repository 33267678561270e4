"""Print tables and paragraphs: in colour and folded on a terminal, in long lines elsewhere."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 100
"""Columns of a paragraph."""
_UNFOLDED = 10_000
"""Columns where there is no terminal: a path in a log must stay in one piece."""
_LINES, _LAST = 12, 4
"""How much of a long text is shown, and how many of these lines are its last ones."""
_TRAILING = re.compile(r"[ \t](?:[ \t]|\x1b\[[0-9;]*m)*$", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]+")


def printed(stream: IO[str] | None, show: Callable[[Console], None]) -> str:
    """Return what a function prints for a stream, without trailing blanks.

    Colour is for terminals, or wherever FORCE_COLOR asks for it; NO_COLOR forbids it.
    """
    from rich.console import Console

    terminal = stream is not None and stream.isatty()
    forced = stream is not None and os.environ.get("FORCE_COLOR", "") not in ("", "0")
    # rich itself would end the program when the reader has gone.
    text = StringIO()
    console = Console(
        file=text,
        force_terminal=terminal or forced,
        width=None if terminal else _UNFOLDED,
        highlight=False,
        soft_wrap=False,
    )
    show(console)
    return _TRAILING.sub(lambda end: _BLANKS.sub("", end[0]), text.getvalue())


def table_of(columns: Iterable[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Return a table without a frame, whose cells are folded rather than cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def paragraph(text: str, first: str = "", others: str = "  ") -> list[str]:
    """Fold a text; of a very long one the middle is left out, never the end."""
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    if len(lines) > _LINES:
        lines[_LINES - _LAST : -_LAST] = [f"{others}[...]"]
    return lines


def labelled(label: str, text: str) -> list[str]:
    """Fold a text behind a label; no line for no text."""
    return paragraph(text, f"  {label:<9}", " " * 11) if text else []


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 file``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
