from __future__ import annotations

import stat
import subprocess
import sys
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.fetch import fetch, parse_release
from tests.upstream.trees import sampled

SOURCES = {
    "sglang/__init__.py": b"",
    "sglang/version.py": b"__version__ = '0.5.12'\r\n",
    "sglang/srt/server_args.py": b"import os\n",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip knows, set as a user would set it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory yet to be made, alone in its parent so that leftovers show."""
    return tmp_path / "out" / "tree"


def publish(
    index: Path,
    version: str = "0.5.12",
    *,
    name: str = "sglang",
    tag: str = "cp311-cp311-manylinux_2_34_x86_64",
    files: dict[str, bytes] = SOURCES,
    link: str = "",
) -> Path:
    metadata = f"{name}-{version}.dist-info"
    wheel = index / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        if link:
            member = zipfile.ZipInfo(link)
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, "/etc/passwd")
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{metadata}/METADATA", header + "Requires-Dist: no-such-thing==1\n")
        archive.writestr(f"{metadata}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{metadata}/RECORD", "")
    return wheel


def laid_out(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def check_refused(release: str, target: Path, *, match: str) -> None:
    before = laid_out(target.parent)
    with pytest.raises(Refused, match=match):
        fetch(release, target)
    assert laid_out(target.parent) == before
    assert not [path for path in target.parent.glob(".*") if path.is_dir()]


@pytest.mark.parametrize(
    ("release", "name", "version"),
    [
        ("0.5.12.post1", "sglang", "0.5.12.post1"),
        ("v0.5.12.post1", "sglang", "0.5.12.post1"),
        ("0.5.3rc2", "sglang", "0.5.3rc2"),
        ("0.5.12+corp.4", "sglang", "0.5.12+corp.4"),
        ("sglang==0.5.9", "sglang", "0.5.9"),
        ("sglang-corp == v1.2", "sglang-corp", "1.2"),
    ],
)
def test_release_is_a_version_or_a_pinned_name(release: str, name: str, version: str) -> None:
    assert [str(part) for part in parse_release(release)] == [name, version]


@pytest.mark.parametrize(
    "release",
    [
        "",
        "latest",
        "sglang",
        "--index-url=x",
        "--index-url=x==1.0",
        "-r==1.0",
        "sglang>=0.5",
        "sglang==0.5.*",
        "sglang===0.5.9",
        "sglang==0.5.9,!=0.5.8",
        "sglang[all]==0.5.9",
        "sglang==0.5.9; python_version > '3'",
        "sglang @ file:///sglang.whl",
        "./sglang.whl",
        "0.5.9 --index-url=x",
        "0.5.9\n--index-url=x",
    ],
)
def test_anything_else_is_refused(release: str, target: Path) -> None:
    check_refused(release, target, match="names no release")


@pytest.mark.parametrize(
    "tag",
    ["cp311-cp311-manylinux_2_34_x86_64", "py3-none-any", "py3-none-manylinux_2_35_x86_64"],
)
def test_sources_and_metadata_are_laid_out(index: Path, target: Path, tag: str) -> None:
    publish(index, tag=tag)
    result = fetch("v0.5.12", target)
    assert (result.directory, result.name, result.version) == (target, "sglang", "0.5.12")
    assert (result.files, result.left_out) == (5, 0)
    files = laid_out(target)
    assert {path: files[path] for path in SOURCES} == SOURCES
    assert set(files) - set(SOURCES) == {
        "sglang-0.5.12.dist-info/METADATA",
        "sglang-0.5.12.dist-info/WHEEL",
    }
    assert [path.name for path in target.parent.iterdir()] == ["tree"]


def test_compiled_files_and_other_packages_are_left_out(index: Path, target: Path) -> None:
    odd_source = {"sglang/utf16.py": "x = 1\n".encode("utf-16")}
    compiled = {"sglang/srt/kernel.so": b"\x7fELF\0", "tools/__init__.py": b""}
    publish(index, files=SOURCES | odd_source | compiled)
    result = fetch("0.5.12", target)
    assert result.left_out == 1
    assert str(result) == f"sglang 0.5.12 in {target}: 6 files, 1 compiled left out"
    files = laid_out(target)
    assert set(odd_source) < set(files)
    assert not set(compiled) & set(files)


def test_other_copies_of_the_package_are_left_out_and_named(index: Path, target: Path) -> None:
    copy = {"build/lib/sglang/srt/server_args.py": b"", "build/lib/sglang/version.py": b""}
    publish(index, files=SOURCES | copy)
    assert fetch("0.5.12", target).copies == (PurePosixPath("build/lib/sglang"),)
    assert not set(copy) & set(laid_out(target))


def test_fork_under_another_name(index: Path, target: Path) -> None:
    publish(index, "1.2", name="sglang_corp")
    result = fetch("sglang-corp==1.2", target)
    assert (result.name, result.version) == ("sglang-corp", "1.2")
    assert (target / "sglang" / "version.py").exists()


def test_permissions_are_those_of_a_new_directory(index: Path, target: Path) -> None:
    publish(index)
    fetch("0.5.12", target)
    ordinary = target.parent / "ordinary"
    ordinary.mkdir()
    assert target.stat().st_mode == ordinary.stat().st_mode


def test_empty_directory_is_filled_and_stays_itself(index: Path, target: Path) -> None:
    publish(index)
    target.mkdir(parents=True)
    before = target.stat().st_ino
    fetch("0.5.12", target)
    assert target.stat().st_ino == before
    assert set(SOURCES) < set(laid_out(target))


@pytest.mark.parametrize("occupied", ["tree/kept.txt", "tree"], ids=["not empty", "a file"])
def test_occupied_target_is_refused(index: Path, target: Path, occupied: str) -> None:
    publish(index)
    kept = target.parent / occupied
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    check_refused("0.5.12", target, match="new or empty directory")


def test_parent_that_is_a_file_is_refused(index: Path, tmp_path: Path) -> None:
    publish(index)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="cannot write sglang"):
        fetch("0.5.12", tmp_path / "file" / "tree")


def test_missing_version_names_the_nearest(index: Path, target: Path) -> None:
    for version in ("0.5.2", "0.5.8", "0.5.9", "0.5.10", "0.5.12", "0.5.13", "0.5.14", "0.5.20"):
        publish(index, version)
    nearest = r"no wheel of sglang 0\.5\.11; .*: 0\.5\.8, 0\.5\.9, 0\.5\.10, 0\.5\.12, .*0\.5\.14$"
    check_refused("0.5.11", target, match=nearest)
    check_refused("0.5.9999", target, match=r": 0\.5\.13, 0\.5\.14, 0\.5\.20$")


def test_unknown_name_says_what_pip_said(index: Path, target: Path) -> None:
    check_refused("nobody-has-this==1.0", target, match="could not download nobody-has-this 1.0")


def test_python_without_pip_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    monkeypatch.setattr(sys, "executable", str(bare / scripts / "python"))
    check_refused("0.5.12", target, match="has no pip")


@pytest.mark.parametrize(
    "path",
    sampled(
        (
            "../escape.py",
            "sglang/../../escape.py",
            "/escape.py",
            "sglang\\..\\escape.py",
            "C:/x.py",
        ),
        ("../escape.py", "/escape.py"),
    ),
)
def test_wheel_that_writes_elsewhere_is_refused(index: Path, target: Path, path: str) -> None:
    publish(index, files={**SOURCES, path: b"mine"})
    check_refused("0.5.12", target, match="which a wheel never does")


def test_wheel_with_a_symbolic_link_is_refused(index: Path, target: Path) -> None:
    publish(index, link="sglang/link.py")
    check_refused("0.5.12", target, match="which a wheel never does")


def test_wheel_without_the_package_is_refused(index: Path, target: Path) -> None:
    publish(index, files={"other/__init__.py": b""})
    check_refused("0.5.12", target, match="not a release of SGLang")


def test_damaged_wheel_is_refused(index: Path, target: Path) -> None:
    wheel = publish(index)
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"import os\n", b"import 0s\n"))
    check_refused("0.5.12", target, match="is not a readable wheel")


def test_failure_of_the_last_step_leaves_nothing(
    index: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)
    target.mkdir(parents=True)
    rename = Path.rename

    def fail_at_metadata(self: Path, to: Path) -> Path:
        if self.name.endswith(".dist-info"):
            raise OSError(28, "No space left on device")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail_at_metadata)
    check_refused("0.5.12", target, match="No space left on device")
    assert list(target.iterdir()) == []


def test_interrupt_leaves_nothing(
    index: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("0.5.12", target)
    assert list(target.parent.iterdir()) == []


def test_command(index: Path, target: Path) -> None:
    publish(index)
    command = [sys.executable, "-m", "sgl_npu_patch", "fetch", "0.5.12", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"sglang 0.5.12 in {target}: 5 files\n"
    assert set(SOURCES) < set(laid_out(target))
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 4
    assert "new or empty directory" in again.stderr
    assert again.stdout == ""
