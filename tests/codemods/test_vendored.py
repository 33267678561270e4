"""Check when the vendored modules are written, refreshed, and left to their owner."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from tests.helpers import ROOT, judge, shape


def _vendored(seam: str) -> tuple[str, bytes]:
    path = f"{PROJECT.vendor_folder}/{seam}.py"
    return path, judge(seam, shape("0.5.12"))[1][path]


def _version(data: bytes, version: str) -> bytes:
    assert data.count(f"npu-patch {__version__}:".encode()) == 1
    return data.replace(f"npu-patch {__version__}:".encode(), f"npu-patch {version}:".encode())


@pytest.mark.parametrize("seam", PROJECT.vendored)
def test_adds_the_module_with_its_header(seam: str) -> None:
    path, data = _vendored(seam)
    head = data.splitlines()[0]
    assert b"\r" not in data
    assert b"do not edit" in head
    assert __version__.encode() in head
    outcome, _ = judge(seam, shape("0.5.12"))
    assert f"{ROOT}/{path} {seam}" in map(str, outcome.sites)


@pytest.mark.parametrize(
    ("seam", "names"),
    [
        ("npu_ops", {"torch", "torch_npu", "batch_invariant_ops"}),
        ("launch_guards", {"torch_npu"}),
        ("penalties", {"torch"}),
        ("seeded_sampling", {"torch"}),
    ],
)
def test_imports_nothing_that_the_tree_may_lack(seam: str, names: set[str]) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(_vendored(seam)[1]))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names | names


@pytest.mark.parametrize("seam", PROJECT.vendored)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["as written", "turned line endings"])
def test_an_unmodified_module_is_ours(seam: str, newline: bytes) -> None:
    _, patched = judge(seam, shape("0.5.12"))
    path, data = _vendored(seam)
    outcome, after = judge(seam, patched | {path: data.replace(b"\n", newline)})
    assert outcome.status == "already"
    assert after[path] == data.replace(b"\n", newline)


@pytest.mark.parametrize("seam", PROJECT.vendored)
def test_an_older_version_of_ours_is_refreshed(seam: str) -> None:
    path, data = _vendored(seam)
    outcome, after = judge(seam, shape("0.5.12") | {path: _version(data, "0.0.1")})
    assert (outcome.status, outcome.outdated) == ("pending", True)
    assert after[path] == data


@pytest.mark.parametrize("present", ["the call", "the module"])
def test_half_of_the_launch_guards_gets_the_other_half(present: str) -> None:
    before = shape("0.5.12")
    _, patched = judge("launch_guards", before)
    path, _ = _vendored("launch_guards")
    half = {
        name: data for name, data in patched.items() if (name == path) == (present != "the call")
    }
    outcome, after = judge("launch_guards", {**before, **half})
    assert outcome.status == "pending"
    assert after == patched


@pytest.mark.parametrize("seam", PROJECT.vendored)
@pytest.mark.parametrize(
    ("edit", "found"),
    [
        pytest.param(lambda data: data + b"# mine\n", "somebody edited", id="edited at its end"),
        pytest.param(
            lambda data: data.replace(b"import ", b"import  ", 1),
            "somebody edited",
            id="edited at its head",
        ),
        pytest.param(lambda data: data[: len(data) // 2], "somebody edited", id="cut short"),
        pytest.param(
            lambda data: b"\n".join(data.split(b"\n")[:-5]) + b"\n",
            "somebody edited",
            id="a line less",
        ),
        pytest.param(lambda data: data.rstrip(b"\n"), "somebody edited", id="no final newline"),
        pytest.param(
            lambda data: _version(data, "0.0.1") + b"# mine\n",
            "somebody edited",
            id="an older version, edited",
        ),
        pytest.param(lambda data: _version(data, "99.0"), "version 99.0", id="a newer version"),
        pytest.param(lambda data: b"x = 1\n", "did not write", id="somebody else's"),
        pytest.param(lambda data: b"", "did not write", id="empty"),
        pytest.param(lambda data: b"\xff\xfe", "did not write", id="bytes"),
        pytest.param(lambda data: b"\n" + data, "did not write", id="something above the header"),
    ],
)
def test_a_module_that_is_not_ours_to_write_is_a_conflict(
    seam: str, edit: Callable[[bytes], bytes], found: str
) -> None:
    """What `next` asks for, in each of its forms, begins with taking the file away."""
    path, data = _vendored(seam)
    before = shape("0.5.12") | {path: edit(data)}
    outcome, after = judge(seam, before)
    assert outcome.status == "conflict"
    assert after == before
    assert [(str(site.path), site.line) for site in outcome.sites] == [(f"{ROOT}/{path}", 0)]
    assert outcome.evidence is not None
    assert found in outcome.evidence.found
    mended, patched = judge(seam, {name: data for name, data in before.items() if name != path})
    assert mended.status == "pending"
    assert patched[path] == data
