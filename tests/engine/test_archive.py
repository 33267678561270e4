from __future__ import annotations

import stat
import zipfile
from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.engine.archive import check_members, find_copies
from sgl_npu_patch.engine.errors import Refused


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
    assert find_copies(names) == tuple(map(PurePosixPath, copies))
