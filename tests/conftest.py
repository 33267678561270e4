"""Prepare the processes of a run alike, and share patched releases among them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile

import pytest

TREES = "SGL_NPU_PATCH_TEST_TREES"
"""Names the folder in which `tests.upstream.trees` lays out what it patches."""


def pytest_configure(config: pytest.Config) -> None:
    # Syntax trees are many small objects, which the collector would visit again and again.
    gc.set_threshold(100_000, 20, 100)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in a job in the background; the programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if TREES not in os.environ:
        os.environ[TREES] = tempfile.mkdtemp(prefix="sgl-npu-patch-trees-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(TREES)))
