"""Execute the batch-invariant mode of patched releases, on the simulated NPU and off it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

from sgl_npu_patch.simulator.sglang import VENDORED, Device, Execution
from tests.upstream import scenarios
from tests.upstream.program import ROOT
from tests.upstream.releases import FORKS_PATCHED, RELEASES_PATCHED, release_tree
from tests.upstream.trees import patched_tree

# No argument; enable_bmm; imports of DeepGEMM beside it; the dispatch key; two operators more.
SHAPES = ("0.5.3rc2", "0.5.4.post1", "0.5.9", "0.5.11", "0.5.12.post1")
NEW, OLD = "2.10.0", "2.8.0.post2"
MACHINES = (
    *((version, "2.0.0", NEW) for version in (*SHAPES, "sglang-kt==0.7.2", "lsglang==1.3.1")),
    ("0.5.12.post1", "1.0.0", OLD),
    ("0.5.3rc2", "none", NEW),
    ("0.5.12.post1", "another", NEW),
)
NATIVE_GAPS = {
    "0.5.13": {
        "attention-torch_npu[no_grad]": "nothing of the extension is reached",
        "attention-ops-out[no_grad]": "no attribute 'out'",
        "mm[no_grad]": "not the objects of before",
        "linear-bias-2d[no_grad]": "nothing of the extension is reached",
        "mean-to-float32[no_grad]": "torch.bfloat16, not torch.float32",
    },
    "0.5.23": {
        "mm[no_grad]": "not the objects of before",
        "linear-bias-2d[no_grad]": "nothing of the extension is reached",
        "mean-to-float32[no_grad]": "torch.bfloat16, not torch.float32",
    },
}
MODULE = "sglang.srt.batch_invariant_ops.batch_invariant_ops"


@cache
def results(tree: Path, extension: str, torch_npu: str, *only: str) -> dict[str, str | None]:
    """Run the scenarios in a process of their own and return the traceback of each."""
    command = [sys.executable, "-W", "error", "-m", scenarios.__name__]
    command += [str(tree), extension, torch_npu, *only]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("version", "extension", "torch_npu", "scenario"),
    [
        pytest.param(*machine, name, id="-".join((*machine, name)))
        for machine in MACHINES
        for name in scenarios.applicable(machine[1])
    ],
)
def test_on_an_npu(version: str, extension: str, torch_npu: str, scenario: str) -> None:
    failure = results(patched_tree(version), extension, torch_npu)[scenario]
    assert failure is None, failure


@pytest.mark.parametrize("version", NATIVE_GAPS)
def test_the_gaps_of_native_releases_are_seen(version: str) -> None:
    """What upstream's adaptation leaves open fails here: the scenarios can fail."""
    expected = NATIVE_GAPS[version]
    found = results(release_tree(version), "2.0.0", NEW, *expected)
    for name, message in expected.items():
        assert message in (found[name] or "passed")


class Library:
    """Stands for `torch.library.Library`; writes down what is done with it."""

    log: list[Any]

    def __init__(self, namespace: str, kind: str, *others: object) -> None:
        self.log.append(("new", namespace, kind, others))

    def impl(self, name: str, function: Callable[..., Any], *others: object) -> None:
        self.log.append(("impl", name, identity(function), others))

    def _destroy(self) -> None:
        self.log.append("destroy")


def identity(function: Any) -> tuple[str, object]:
    """Tell functions of two trees apart by name and code."""
    code: CodeType = function.__code__
    return function.__qualname__, (code.co_code, code.co_consts[1:], code.co_names)


def call_the_mode(module: Any, log: list[Any]) -> None:
    """Go through what the module offers, writing down `torch.bmm` and the flag after each step."""
    original = torch.bmm
    takes_bmm = "enable_bmm" in module.enable_batch_invariant_mode.__code__.co_varnames

    def note(step: str) -> None:
        bmm = "original" if torch.bmm is original else identity(torch.bmm)
        log.append((step, bmm, module.is_batch_invariant_mode_enabled()))

    for options in ({}, {"enable_bmm": False}, {"enable_bmm": True}) if takes_bmm else ({},):
        module.enable_batch_invariant_mode(**options)
        note("on")
        module.enable_batch_invariant_mode(**options)
        note("on again")
        module.disable_batch_invariant_mode()
        note("off")
    for start in (False, True):
        for inside in (False, True):
            torch.bmm = original
            if start:
                module.enable_batch_invariant_mode()
            with module.set_batch_invariant_mode(inside):
                note(f"{inside} in {start}")
            note("left")
            module._batch_invariant_LIB = None
            module._batch_invariant_MODE = False
    with pytest.raises(KeyError), module.set_batch_invariant_mode():
        raise KeyError("of the test")
    note("left by an exception")


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    bmm, library = torch.bmm, torch.library.Library
    yield
    vars(torch)["bmm"] = bmm
    vars(torch.library)["Library"] = library


def trace(tree: Path, device: Device) -> list[Any]:
    """Return everything that the mode does off the NPU; `torch_npu` cannot be imported."""
    log: list[Any] = []
    Library.log = log
    original = torch.bmm
    with Execution(tree, device) as execution:
        module = execution.load(MODULE)
        vars(torch.library)["Library"] = Library
        try:
            call_the_mode(module, log)
        except RuntimeError as error:
            log.append(str(error))
        finally:
            torch.bmm = original
        assert f"{VENDORED}.npu_ops" not in sys.modules
    return log


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize("device", ["cuda", "hip", "xpu", "cpu"])
@pytest.mark.parametrize("version", [*RELEASES_PATCHED, *FORKS_PATCHED])
def test_off_the_npu_nothing_is_different(version: str, device: Device) -> None:
    expected = trace(release_tree(version), device)
    assert trace(patched_tree(version), device) == expected
    if device == "cuda":
        keys = {event[3] for event in expected if event[0] == "impl"}
        assert keys == {("CUDA",)}
