"""What a torch_npu offers is read from wheels, folders and installed copies."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.verify import torch_npu_wheel
from sgl_npu_patch.verify.torch_npu_wheel import TorchNpu, cache_directory, read
from tests.verify.test_contracts import NEWEST, OLDEST

NORM = "npu_norm(Tensor x, float eps=1e-06) -> Tensor"
PAGED = "_npu_paged(Tensor x, int ? mask=None, *,  Tensor(a!) out) -> Tensor(a!)"
LIBRARY = b"\x7fELF\0\1\2" + b"\0".join(
    [
        NORM.encode(),
        b"npu_norm",
        b"npu_cut_up",
        b"ne, bool cumsum=tion_splitfuse(Ttion_qle -> x",
        b"expected(int) -> got",
        "ü(Tensor x) -> Tensor".encode(),
    ]
)
FILES = {
    "torch_npu/lib/libtorch_npu.so": LIBRARY,
    "torch_npu/lib/libop_plugin_atb.so": b"\0" + PAGED.encode() + b"\0",
    "torch_npu/lib/libother.so": b"\0npu_other(Tensor x) -> Tensor\0",
    "torch_npu/__init__.py": b"raise ImportError('no CANN here')",
    "torch_npu/npu/__init__.py": b"from x import NpuGraphOpHandler, register_npu_graph_handler",
    "torch_npu-9.9.post1.dist-info/METADATA": b"Name: torch_npu\nVersion: 9.9.post1\n",
}
SCHEMAS = {"_npu_paged": PAGED, "npu_norm": NORM}


def folder(into: Path, *without: str) -> Path:
    for name, data in FILES.items():
        if name not in without:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(data)
    return into


def wheel(into: Path, *without: str) -> Path:
    path = into / "torch_npu-9.9.post1-cp311-cp311-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES.items():
            if name not in without:
                archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    "given",
    [wheel, folder, lambda into: folder(into) / "torch_npu"],
    ids=["wheel", "folder", "package"],
)
def test_what_is_read(tmp_path: Path, given: Callable[[Path], Path]) -> None:
    found = read(str(given(tmp_path)))
    assert found == TorchNpu("9.9.post1", SCHEMAS, True, ("_npu_paged",), ("npu_cut_up",))


def test_an_installed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder(tmp_path)))
    assert read("installed").schemas == SCHEMAS
    assert "torch_npu" not in sys.modules


def test_no_installed_copy() -> None:
    with pytest.raises(Refused, match="not installed"):
        read("installed")


def test_graph_handlers_need_the_function(tmp_path: Path) -> None:
    assert not read(str(wheel(tmp_path, "torch_npu/npu/__init__.py"))).graph_handlers


def test_a_wheel_without_schemas(tmp_path: Path) -> None:
    libraries = [name for name in FILES if "/lib/" in name]
    with pytest.raises(Refused, match="no operator schemas"):
        read(str(wheel(tmp_path, *libraries)))
    with pytest.raises(Refused, match="no operator schemas"):
        read(str(folder(tmp_path / "folder", *libraries)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nonsense", "names no torch_npu"),
        ("--index-url=x", "names no torch_npu"),
        ("missing.whl", "cannot read missing.whl"),
        ("0.0.1", "pip finds no wheel of torch_npu 0.0.1"),
    ],
)
def test_refused(given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path))
    with pytest.raises(Refused, match=said):
        read(given)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(name: str, version: Any, into: Path, platforms: Any) -> Path:
        asked.append((name, str(version), platforms))
        return wheel(into)

    monkeypatch.setattr(torch_npu_wheel, "download", download)
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path / "cache"))
    assert (
        read("9.9.post1")
        == read("9.9.post1")
        == TorchNpu("9.9.post1", SCHEMAS, True, ("_npu_paged",), ("npu_cut_up",))
    )
    assert asked == [("torch_npu", "9.9.post1", torch_npu_wheel.PLATFORMS)]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SGL_NPU_PATCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "sgl-npu-patch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "sgl-npu-patch"


@pytest.mark.parametrize(("version", "handlers"), [(OLDEST, False), (NEWEST, True)])
def test_the_real_wheels(version: str, handlers: bool) -> None:
    """All pieces of Ascend's transformer library are whole in the wheels for aarch64."""
    found = read(version)
    assert found.version == version
    assert found.graph_handlers is handlers
    assert {"_npu_paged_attention", "_npu_flash_attention_qlens"} <= set(found.schemas)
