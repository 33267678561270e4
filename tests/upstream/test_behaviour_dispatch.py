"""Execute `get_dispatch_device_backend` of the releases that have it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sgl_npu_patch.simulator.sglang import DISPATCH, Device, cut_function, package_folder, utilities
from tests.upstream.releases import release_tree
from tests.upstream.trees import patched_tree

PATCHED = ("0.5.11", "0.5.12", "0.5.12.post1")
NATIVE = ("0.5.13", "0.5.23")
COMMON = "srt/utils/common.py"


@pytest.mark.parametrize("version", [*PATCHED, *NATIVE])
@pytest.mark.parametrize(
    ("device", "key"), [("npu", "NPU"), ("cuda", "CUDA"), ("hip", "CUDA"), ("xpu", "XPU")]
)
def test_the_dispatch_key_is_that_of_the_device(version: str, device: Device, key: str) -> None:
    assert dispatch_key(tree_of(version), device) == key


@pytest.mark.parametrize("version", [*PATCHED, *NATIVE])
def test_no_accelerator_is_an_error(version: str) -> None:
    with pytest.raises(RuntimeError, match="No supported accelerator"):
        dispatch_key(tree_of(version), "cpu")


@pytest.mark.parametrize("version", PATCHED)
def test_the_original_knows_no_npu(version: str) -> None:
    with pytest.raises(RuntimeError, match="No supported accelerator"):
        dispatch_key(release_tree(version), "npu")


@pytest.mark.parametrize("version", PATCHED)
def test_what_it_calls_is_in_the_file(version: str) -> None:
    """It is executed cut out of its file, where a missing name would not show."""
    tree = patched_tree(version)
    function = cut_function(tree, COMMON, DISPATCH, utilities("npu"))
    called = {name for name in function.__code__.co_names if name.startswith("is_")}
    assert "is_npu" in called
    module = ast.parse((package_folder(tree) / COMMON).read_bytes())
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert called <= defined


def dispatch_key(tree: Path, device: Device) -> str:
    key: str = cut_function(tree, COMMON, DISPATCH, utilities(device))()
    return key


def tree_of(version: str) -> Path:
    return release_tree(version) if version in NATIVE else patched_tree(version)
