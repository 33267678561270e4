"""Hold the short insertions that the codemods place, as `string.Template` files.

They only call into the vendored modules or into SGLang; each is formatted as it lands there.
``NAME@VERSION.tmpl`` is the last form of NAME.tmpl that VERSION of this tool inserted; with it an
insertion of that version is recognised, and replaced by today's.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


def render(name: str, **values: str) -> str:
    """Fill in a template.

    Raises:
        KeyError: a placeholder got no value.
    """
    return template(name).substitute(values)


@cache
def template(name: str) -> Template:
    """Read a template; a form of an older version is named ``NAME@VERSION``."""
    text = files(__name__).joinpath(f"{name}.tmpl").read_text("utf-8")
    return Template(text.replace("\r\n", "\n"))


@cache
def older_forms() -> tuple[str, ...]:
    """List the forms of older versions, as ``NAME@VERSION``."""
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(n.removesuffix(".tmpl") for n in names if "@" in n))
