"""torch_npu in a simulated process."""


def _autoload() -> None:
    """Do nothing: torch calls this after it has imported the module, or while that goes on."""


# Imports torch, which looks for the function above.
from sgl_npu_patch.simulator import process  # noqa: E402

process.install_torch_npu(__spec__)
