"""Hold the short insertions that the codemods place, as `string.Template` files.

They only call into the vendored modules or into SGLang; each is formatted as it lands there.
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
    return _template(name).substitute(values)


@cache
def _template(name: str) -> Template:
    text = files(__name__).joinpath(f"{name}.tmpl").read_text("utf-8")
    return Template(text.replace("\r\n", "\n"))
