"""SGLang's own determinism test, over HTTP, against its server on the simulated NPU."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.verify.server import models
from tests.accept import served
from tests.upstream.program import program
from tests.upstream.releases import release_tree

PAGE = 128

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["0.5.12.post1", "0.5.23"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patched") / "tree"
    shutil.copytree(release_tree(str(request.param)), folder)
    assert program("apply", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen3"
    return models.make("qwen3", folder, vocabulary=served.VOCABULARY)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_the_mode_on(tree: Path, model: Path) -> None:
    """What these modes compare is equal, and so is a long prompt that is in the cache."""
    port = free_port()
    with served.server(tree, model, port, "--enable-deterministic-inference"):
        for mode in served.MODES:
            found = served.ask(tree, port, mode)
            assert found.holds, (mode, found)
        prompt = [*range(100, 100 + 2 * PAGE + 10)]
        first, again = generate(port, prompt), generate(port, prompt)
    assert (first["cached_tokens"], again["cached_tokens"]) == (0, 2 * PAGE)
    assert first["output_token_logprobs"] == again["output_token_logprobs"]


def test_the_mode_off(tree: Path, model: Path) -> None:
    """Without the mode, what was decoded has other logprobs when it is prefilled."""
    port = free_port()
    with served.server(tree, model, port):
        found = served.ask(tree, port, "p_vs_d")
    assert found.different
    assert not found.errors


def generate(port: int, prompt: Sequence[int]) -> dict[str, Any]:
    """Return what the server says of one request."""
    params = {"max_new_tokens": 4, "temperature": 0.7, "sampling_seed": 7, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        meta: dict[str, Any] = json.load(answer)["meta_info"]
    return meta
