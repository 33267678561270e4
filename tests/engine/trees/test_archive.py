from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees import archive as engine_archive
from sgl_npu_patch.engine.trees.archive import check_members, find_copies, open_archive
from sgl_npu_patch.engine.trees.open import open_tree
from sgl_npu_patch.engine.trees.wheel import WheelTree
from tests.engine.package import SOURCES, build, plan_of
from tests.engine.wheels import build_wheel


def members(*names: str, mode: int = 0) -> list[zipfile.ZipInfo]:
    found = [zipfile.ZipInfo(name) for name in names]
    for member in found:
        member.external_attr = mode << 16
    return found


@pytest.mark.parametrize("mode", [0, 0o644, stat.S_IFREG | 0o755])
def test_plain_members_are_taken(mode: int) -> None:
    check_members("x.whl", members("a.py", "a/b.py", "a/..b", "a/b c,d.json", mode=mode))


@pytest.mark.parametrize(
    "name",
    [
        "../a.py",
        "a/../../b.py",
        "/etc/passwd",
        "a//b.py",
        "./a.py",
        "..",
        "a\\..\\b",
        "C:/a",
        "a\0b",
    ],
)
def test_members_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(Refused, match="which a wheel never does"):
        check_members("x.whl", members("a.py", name))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_members_that_are_no_files_are_refused(kind: int) -> None:
    with pytest.raises(Refused, match=r"holds 'a\.py', which a wheel never does"):
        check_members("x.whl", members("a.py", mode=kind | 0o777))


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(Refused, match=r"'a\.py' more than once"):
        check_members("x.whl", members("a.py", "b.py", "a.py"))


def test_file_and_folder_of_one_name_are_refused() -> None:
    with pytest.raises(Refused, match="holds 'a', which"):
        check_members("x.whl", members("a", "a/b.py"))


def test_copies_are_found() -> None:
    names = ["build/lib/sglang/srt/a.py", "build/lib/sglang/srt/b/c.py", "sglang/srt/a.py"]
    names += ["x/sglang/a.py", "x/sglangs/srt/a.py", "mysglang/srt/a.py", "sglang/sglang/srt/a.py"]
    copies = ("build/lib/sglang", "sglang/sglang")
    assert find_copies(PROJECT, names) == tuple(map(PurePosixPath, copies))


def pack(archive: Path, members: Mapping[str, bytes | tarfile.TarInfo | zipfile.ZipInfo]) -> Path:
    """Write a zip or tar archive of contents, and of members that are none."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for name, data in members.items():
                if isinstance(data, zipfile.ZipInfo):
                    zipped.writestr(data, "x")
                elif isinstance(data, bytes):
                    zipped.writestr(name, data)
        return archive
    mode: Any = f"w:{archive.suffix[1:].replace('tar', '').replace('tgz', 'gz')}"
    with tarfile.open(archive, mode) as tar:
        for name, data in members.items():
            info = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            content = data if isinstance(data, bytes) else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def sources(folder: str) -> dict[str, Any]:
    return {f"{folder}{path}": source.encode() for path, source in SOURCES.items()}


def link(archive: str, name: str) -> tarfile.TarInfo | zipfile.ZipInfo:
    if archive.endswith(".zip"):
        return members(name, mode=stat.S_IFLNK | 0o777)[0]
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


ARCHIVES = ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz"]


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize(
    "folder",
    ["sglang-0.5.9/python/sglang/", "sglang-0.5.9/sglang/", "python/sglang/", "sglang/", "x/", ""],
)
def test_archive_reads_as_a_directory_does(tmp_path: Path, name: str, folder: str) -> None:
    tree = open_archive(pack(tmp_path / name, sources(folder)), PROJECT)
    build(tmp_path / "tree", folder or ".")
    assert tree.package == PurePosixPath(folder)
    assert tree.read(tree.package / "no.py") is None
    plan = make_plan(tree, SERIES)
    top = "" if folder in ("", "sglang/", "python/sglang/") else folder.partition("/")[0]
    expected = plan_of(tmp_path / "tree" / top)
    assert [o.status for o in plan.outcomes] == [o.status for o in expected.outcomes]
    assert [change.path for change in plan.changes.changes] == [
        top / change.path for change in expected.changes.changes
    ]
    assert [change.after for change in plan.changes.changes] == [
        change.after for change in expected.changes.changes
    ]


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archive_leaves_out_what_a_directory_does(tmp_path: Path, name: str) -> None:
    odd = ["x/.a.py", "x/.b/a.py", "x/__pycache__/a.py", "x/a.txt", "sglang/a.py"]
    more = {f"top/sglang/{path}": b"is_odd" for path in odd}
    tree = open_archive(pack(tmp_path / name, {**sources("top/sglang/"), **more}), PROJECT)
    assert tree.containing(b"is_odd") == (PurePosixPath("top/sglang/sglang/a.py"),)
    assert tree.containing(b"is_npu", [PurePosixPath("top/sglang/sglang/a.py")]) == ()


def test_archive_with_folders_dots_and_a_copy(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("./top/sglang/srt")
    folder.type = tarfile.DIRTYPE
    files = {**sources("./top/sglang/"), "./top/build/lib/sglang/srt/a.py": b""}
    tree = open_archive(pack(tmp_path / "a.tar", {"./top/sglang/srt": folder, **files}), PROJECT)
    assert tree.package == PurePosixPath("top/sglang")
    assert tree.copies() == (PurePosixPath("top/build/lib/sglang"),)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@pytest.mark.parametrize("member", ["../a.py", "/a.py", "top/../a.py", "top//a.py", "C:/a.py"])
def test_hostile_archive_is_refused(tmp_path: Path, name: str, member: str) -> None:
    archive = pack(tmp_path / name, {**sources("sglang/"), member: b""})
    with pytest.raises(Refused, match=r"a\..* holds .*, which a source archive never does"):
        open_archive(archive, PROJECT)


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_special_member_is_refused(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("x.py")
    info.type = kind
    with pytest.raises(Refused, match=r"holds 'x\.py', which a source archive never does"):
        open_archive(pack(tmp_path / "a.tar", {**sources("sglang/"), "x.py": info}), PROJECT)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_link_in_an_archive(tmp_path: Path, name: str) -> None:
    files = {**sources("sglang/"), "link.py": link(name, "link.py")}
    assert open_archive(pack(tmp_path / name, files), PROJECT).containing(b"DETERMINISTIC")
    files["sglang/link.py"] = link(name, "sglang/link.py")
    with pytest.raises(Refused, match=r"sglang/link\.py is a link, which is not followed"):
        open_archive(pack(tmp_path / name, files), PROJECT).containing(b"DETERMINISTIC")


def test_member_twice_is_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar", sources("sglang/"))
    with tarfile.open(archive, "a") as tar:
        tar.addfile(tarfile.TarInfo("sglang/version.py"))
    with pytest.raises(Refused, match=r"'sglang/version\.py' more than once"):
        open_archive(archive, PROJECT)


@pytest.mark.parametrize("name", ARCHIVES)
def test_damaged_archive_is_refused(tmp_path: Path, name: str) -> None:
    archive = pack(tmp_path / name, sources("sglang/"))
    data = archive.read_bytes()
    for damaged in (b"", b"no archive", data[: len(data) // 4]):
        archive.write_bytes(damaged)
        with pytest.raises(Refused, match=r"a\..*: (is not readable|cannot be read)"):
            make_plan(open_archive(archive, PROJECT), SERIES)


def test_archive_that_was_cut_between_two_members_is_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar", sources("sglang/"))
    with tarfile.open(archive) as tar:
        last = tar.getmembers()[-1].offset
    archive.write_bytes(archive.read_bytes()[:last])
    with pytest.raises(Refused, match="not readable as an archive: it ends without an end mark"):
        open_archive(archive, PROJECT)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archive_of_something_else(tmp_path: Path, name: str) -> None:
    for files in ({"a/b.py": b""}, sources("one/two/sglang/"), {}):
        with pytest.raises(Refused, match="not a tree of SGLang: looked for"):
            open_archive(pack(tmp_path / name, files), PROJECT)


def test_huge_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_archive, "_LIMIT", 1 << 20)
    archive = pack(tmp_path / "a.tar.gz", {**sources("sglang/"), "x.py": b"\0" * (1 << 20)})
    with pytest.raises(Refused, match="holds more than 1 MB of Python"):
        open_archive(archive, PROJECT)


def test_wheel_is_an_archive(tmp_path: Path) -> None:
    with open_tree(build_wheel(tmp_path), PROJECT) as tree:
        assert isinstance(tree, WheelTree)
