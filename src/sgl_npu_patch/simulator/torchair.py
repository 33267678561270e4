"""What SGLang asks of torchair while its modules are loaded; nothing is compiled with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sgl_npu_patch.simulator.unsimulated import Parts, Unsimulated

PACKAGE = "torchair"


class CompilerConfig:
    """Options of the compiler, none of which is read."""

    def __init__(self) -> None:
        self.mode = ""
        self.debug = self.experimental_config = SimpleNamespace()


def get_npu_backend(**options: Any) -> Unsimulated:
    """Return a backend for `torch.compile` that raises when something is compiled."""
    return Unsimulated(f"the backend of {PACKAGE}")


PARTS: Parts = {
    PACKAGE: {"CompilerConfig": CompilerConfig, "get_npu_backend": get_npu_backend},
    f"{PACKAGE}.configs.compiler_config": {"CompilerConfig": CompilerConfig},
}
