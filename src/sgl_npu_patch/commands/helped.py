"""Print help without the blanks that click leaves where it breaks a line of usage."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help ends no line in blanks."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return _stripped(super().get_help(ctx))


class Group(TyperGroup):
    """The commands, whose help ends no line in blanks."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return _stripped(super().get_help(ctx))


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))
