"""Run the command line with ``python -m sgl_npu_patch``."""

from sgl_npu_patch.cli import main

main()
