"""sgl_kernel_npu in a simulated process."""

from sgl_npu_patch.simulator import process

process.install_sgl_kernel_npu()
