"""CANN's own module in a simulated process."""

from sgl_npu_patch.simulator import process

process.install_acl()
