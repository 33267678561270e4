from __future__ import annotations

import hashlib

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.vendor import Vendored, recognise, render

MODULES = PROJECT.vendored


def written_by(version: str, body: str) -> bytes:
    digest = hashlib.sha256(body.encode()).hexdigest()
    return (
        f"# Written by sgl-npu-patch {version}: do not edit, `sgl-npu-patch apply` refreshes it.\n"
        f"# sha256 of what follows: {digest}\n{body}"
    ).encode()


@pytest.mark.parametrize("module", MODULES)
def test_own_rendering_is_current(module: str) -> None:
    data = render(PROJECT, module)
    assert recognise(PROJECT, module, data) == Vendored("current", __version__)
    assert recognise(PROJECT, module, data.replace(b"\n", b"\r\n")) == Vendored(
        "current", __version__
    )
    assert b"\r" not in data
    compile(data, module, "exec", dont_inherit=True)


def test_no_file_is_missing() -> None:
    assert recognise(PROJECT, "npu_ops", None) == Vendored("missing")


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.0.9", "older"),
        ("0.0.10", "older"),
        (__version__, "older"),
        ("99.0.0", "newer"),
        ("0.10.0", "newer"),
    ],
)
def test_other_versions(version: str, state: str) -> None:
    assert recognise(PROJECT, "npu_ops", written_by(version, "x = 1\n")) == Vendored(state, version)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "state"),
    [("0.9.0", "older"), ("0.10.0rc1", "older"), ("0.10.1", "newer"), ("0.11.0.dev1", "newer")],
)
def test_versions_are_no_text(version: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "__version__", "0.10.0")
    assert recognise(PROJECT, "npu_ops", written_by(version, "x = 1\n")).state == state


@pytest.mark.parametrize("edit", [b"x = 2\n", b"\n"], ids=["line", "newline"])
def test_edited_since(edit: bytes) -> None:
    assert recognise(PROJECT, "npu_ops", render(PROJECT, "npu_ops") + edit).state == "edited"
    assert recognise(PROJECT, "npu_ops", written_by("0.0.1", "x = 1\n") + edit).state == "edited"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x = 1\n",
        b"\xff",
        b"# Written by somebody\n",
        b"\n" + written_by("0.0.1", ""),
        written_by("some-version", ""),
    ],
    ids=["empty", "code", "no text", "other header", "header further down", "no version"],
)
def test_somebody_elses(data: bytes) -> None:
    assert recognise(PROJECT, "npu_ops", data) == Vendored("foreign")


def test_one_module_is_not_taken_for_the_other() -> None:
    assert recognise(PROJECT, "npu_ops", render(PROJECT, "launch_guards")).state != "current"


def test_folder_is_relative() -> None:
    assert not PROJECT.vendor_folder.is_absolute()
