"""List and render the short insertions that the codemods place, as `string.Template` files.

They only call into the vendored modules or into SGLang; each is formatted as it lands there.
How the forms of older versions are named: `sgl_npu_patch.engine.text.template`.
"""

from __future__ import annotations

from sgl_npu_patch.engine.text.template import template


def render(name: str, **values: str) -> str:
    """Fill in a template.

    Raises:
        KeyError: a placeholder got no value.
    """
    return template(__name__, name).substitute(values)
