"""The environment in which Python finds the simulated NPU in place of Ascend's packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

PACKAGES = Path(__file__).parent / "packages"
"""The modules that stand in for Ascend's packages, with the entry point that torch looks for."""

ADVERSARIAL = "SGL_NPU_PATCH_ADVERSARIAL"
"""At 0, only the kernels that the patch replaces depend on the batch, not every reduction."""
OF_ATTENTION = "attention"
"""With this value, attention follows how a sequence is cut into calls too."""

_FIXED = {
    # Of torch: load the device, and trace nothing past its kernels.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # Kernels of Triton run on the CPU.
    "TRITON_INTERPRET": "1",
}


def environment(folders: Iterable[Path], given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to set, on top of those given.

    Args:
        folders: what stands before all other packages, such as the folder with `sglang`.
    """
    paths = [*map(str, folders), str(PACKAGES), given.get("PYTHONPATH", "")]
    # "python" is the one that has this package.
    programs = [str(Path(sys.executable).parent), given.get("PATH", os.defpath)]
    return {
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        ADVERSARIAL: given.get(ADVERSARIAL, "1"),
        **_FIXED,
    }
