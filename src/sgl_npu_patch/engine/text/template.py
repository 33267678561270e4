"""Read the templates of a project's insertions.

They are `string.Template` files of a Python package. ``NAME@VERSION.tmpl`` is the last form of
NAME.tmpl that VERSION of this tool inserted; with it an insertion of that version is recognised,
and replaced by today's.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


@cache
def template(package: str, name: str) -> Template:
    """Read a template; a form of an older version is named ``NAME@VERSION``."""
    text = files(package).joinpath(f"{name}.tmpl").read_text("utf-8")
    return Template(text.replace("\r\n", "\n"))


@cache
def older_forms(package: str) -> tuple[str, ...]:
    """List the forms of older versions, as ``NAME@VERSION``."""
    names = (entry.name for entry in files(package).iterdir())
    return tuple(sorted(n.removesuffix(".tmpl") for n in names if "@" in n))
