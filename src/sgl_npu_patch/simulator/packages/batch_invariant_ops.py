"""batch_invariant_ops in a simulated process."""

from sgl_npu_patch.simulator import process

process.install_extension(__spec__)
