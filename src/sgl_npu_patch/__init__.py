"""Patch a checkout of SGLang so that deterministic inference works on Ascend NPUs."""

__version__ = "0.2.0"
