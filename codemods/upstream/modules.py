"""Name the modules that usually define the symbols of SGLang; a fork may have moved any of them."""

from __future__ import annotations

from sgl_npu_patch.codemods.upstream.symbols import SYMBOLS

USUAL = {
    name: tuple(form.module for form in reversed(symbol.forms) if form.name == name)
    for symbol in SYMBOLS.values()
    for name in symbol.names
}
"""By name, the modules that define it in the releases, the newest first."""
