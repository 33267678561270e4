"""Start a release's server on the simulated NPU, and run SGLang's determinism test against it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sgl_npu_patch.accept import printed
from tests.upstream.program import ROOT

VOCABULARY = 51200
"""The test's radix_cache mode asks for tokens up to 50,000."""
OPTIONS = (
    "--device", "npu", "--attention-backend", "ascend", "--sampling-backend", "ascend",
    "--disable-cuda-graph", "--grammar-backend", "none", "--max-total-tokens", "32768",
    "--max-running-requests", "16", "--watchdog-timeout", "3600",
)  # fmt: skip
MODES = {
    "single": ("--n-trials", "3", "--temperature", "0.7"),
    "radix_cache": (),
    # At any other temperature than 0 or 1 it compares logprobs with and without it.
    "p_vs_d": ("--n-trials", "2"),
}
"""What each mode is asked for. Prompts of `prefix` have up to 4,097 tokens with the tiny model's
tokenizer, of which the simulated attention takes longer than a test may."""
STARTED = 900
"""Seconds after which a server that does not answer has failed, on a busy machine."""


@contextmanager
def server(tree: Path, model: Path, port: int, *options: str) -> Iterator[None]:
    """Run the server of a tree until the context is left, once it answers."""
    launch = ["-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
    environment = {
        **os.environ,
        "ASCEND_USE_FIA": "1",
        "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = model.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_simulate(tree), *launch, *OPTIONS, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
        )
    try:
        ends = time.monotonic() + STARTED
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > ends:
                raise AssertionError(log.read_text("utf-8", "replace")[-3000:])
            time.sleep(2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def ask(tree: Path, port: int, mode: str) -> printed.Printed:
    """Return what SGLang's determinism test finds in one of its modes."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--test-mode", mode]
    options += ["--max-new-tokens", "4", "--return-logprob", *MODES[mode]]
    done = subprocess.run(
        [*_simulate(tree), "-m", "sglang.test.test_deterministic", *options],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
    )
    return printed.read(done.stdout)


def _simulate(tree: Path) -> Sequence[str]:
    return (sys.executable, "-m", "sgl_npu_patch", "simulate", str(tree), "--", "python")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health_generate", timeout=60):
            return True
    except OSError:
        return False
