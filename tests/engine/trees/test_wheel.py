from __future__ import annotations

import os
import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.version import Version

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.trees.wheel import WheelTree, open_wheel
from sgl_npu_patch.engine.trees.wheel_writer import new_version, target_of, write_wheel
from tests.engine.package import ARGUMENTS, WRITTEN, build, plan_of
from tests.engine.wheels import SUFFIX, VERSION, build_wheel, contents_of, record_of

INFO = f"sglang-{VERSION}.dist-info"
NEW_INFO = f"sglang-{VERSION}+{SUFFIX}.dist-info"


def patch(wheel: Path, out: Path) -> tuple[Path, list[str]]:
    tree = open_wheel(wheel, PROJECT)
    target = target_of(tree, out)
    plan = make_plan(tree, SERIES)
    assert plan.changes.changes
    return target, write_wheel(tree, plan.changes, target)


def check_refused(wheel: Path, match: str) -> None:
    with pytest.raises(Refused, match=match):
        patch(wheel, wheel.parent / "out")
    assert not [path for path in (wheel.parent / "out").glob("*") if path.is_file()]


def test_reads_as_a_directory_does(tmp_path: Path) -> None:
    odd = {"sglang/.hidden.py": b"def is_npu", "sglang/__pycache__/x.py": b"def is_npu"}
    tree = open_wheel(build_wheel(tmp_path, odd), PROJECT)
    build(tmp_path, "sglang")
    directory = open_directory(tmp_path, PROJECT)
    for needle in (b"def is_npu", b"import", b"nothing at all"):
        assert tree.containing(needle) == directory.containing(needle)
    path = PurePosixPath("sglang", ARGUMENTS)
    assert tree.read(path) == directory.read(path)
    assert tree.read(PurePosixPath("sglang/no.py")) is None
    assert tree.containing(b"is_npu", [path]) == ()
    plan = make_plan(tree, SERIES)
    assert plan.outcomes == plan_of(tmp_path).outcomes
    assert plan.changes == plan_of(tmp_path).changes


def test_patched_wheel(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    original, bytes_before = contents_of(wheel), wheel.read_bytes()
    target, dropped = patch(wheel, tmp_path / "out")
    assert target == tmp_path / "out" / f"sglang-{VERSION}+{SUFFIX}-py3-none-any.whl"
    assert dropped == []
    assert wheel.read_bytes() == bytes_before
    patched = contents_of(target)
    build(tmp_path / "tree", "sglang")
    for change in plan_of(tmp_path / "tree").changes.changes:
        assert patched[str(change.path)] == change.after
    written = {f"sglang/{name}" for name in WRITTEN}
    for name, data in original.items():
        if name not in written and name not in (f"{INFO}/RECORD", f"{INFO}/METADATA"):
            assert patched[name.replace(INFO, NEW_INFO)] == data
    metadata = original[f"{INFO}/METADATA"].decode()
    assert patched[f"{NEW_INFO}/METADATA"].decode() == metadata.replace(
        f"Version: {VERSION}", f"Version: {VERSION}+{SUFFIX}"
    )
    assert list(patched)[-1] == f"{NEW_INFO}/RECORD"
    files = {name: data for name, data in patched.items() if not name.endswith("/RECORD")}
    assert patched[f"{NEW_INFO}/RECORD"] == record_of(files, NEW_INFO)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    reopened = make_plan(open_wheel(target, PROJECT), SERIES)
    assert reopened.changes.changes == ()


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    first, _ = patch(wheel, tmp_path / "one")
    other = tmp_path / "elsewhere" / wheel.name
    other.parent.mkdir()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        for name in reversed(old.namelist()):
            entry = zipfile.ZipInfo(name, (2026, 11, 29, 1, 2, 4))
            entry.external_attr = (stat.S_IFREG | 0o664) << 16
            new.writestr(entry, old.read(name))
        new.writestr("sglang/", b"")
    os.utime(other, (1, 1))
    second, _ = patch(other, tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}


def test_programs_stay_executable(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo(f"sglang-{VERSION}.data/scripts/run.sh")
        entry.external_attr = (stat.S_IFREG | 0o775) << 16
        archive.writestr(entry, b"#!/bin/sh\n")
    target, _ = patch(wheel, tmp_path / "out")
    with zipfile.ZipFile(target) as archive:
        found = archive.getinfo(f"sglang-{VERSION}+{SUFFIX}.data/scripts/run.sh")
    assert found.external_attr >> 16 == 0o100755


def test_signatures_and_stale_compiled_files_are_dropped(tmp_path: Path) -> None:
    stale = [
        "sglang/srt/__pycache__/server_args.cpython-311.opt-1.pyc",
        "sglang/srt/server_args.pyc",
    ]
    kept = ["sglang/__pycache__/version.cpython-311.pyc", "sglang/srt/__pycache__/args.pyc"]
    more = dict.fromkeys([*stale, *kept], b"x")
    wheel = build_wheel(tmp_path, {**more, f"{INFO}/RECORD.jws": b"{}"})
    target, dropped = patch(wheel, tmp_path / "out")
    assert sorted(dropped) == sorted([*stale, f"{INFO}/RECORD.jws"])
    assert set(kept) < set(contents_of(target))
    assert not {*stale, f"{NEW_INFO}/RECORD.jws"} & set(contents_of(target))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0.5.12", "0.5.12+npu.deterministic"),
        ("0.5.3rc2", "0.5.3rc2+npu.deterministic"),
        ("1!0.5.3.post1", "1!0.5.3.post1+npu.deterministic"),
        ("0.5.9+cu124", "0.5.9+cu124.npu.deterministic"),
        ("0.5.9+npu.deterministic", "0.5.9+npu.deterministic"),
        ("0.5.9+corp.npu.deterministic", "0.5.9+corp.npu.deterministic"),
    ],
)
def test_version_suffix(before: str, after: str) -> None:
    assert str(new_version(Version(before), SUFFIX)) == after


def test_build_number_and_platform_stay_in_the_name(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, tag="7-cp311-cp311-manylinux_2_34_x86_64", version="0.5+cu1")
    target, _ = patch(wheel, tmp_path / "out")
    assert target.name == f"sglang-0.5+cu1.{SUFFIX}-7-cp311-cp311-manylinux_2_34_x86_64.whl"
    assert open_wheel(target, PROJECT).version == Version(f"0.5+cu1.{SUFFIX}")


def test_target_may_be_the_very_file(tmp_path: Path) -> None:
    tree = open_wheel(build_wheel(tmp_path), PROJECT)
    name = f"sglang-{VERSION}+{SUFFIX}-py3-none-any.whl"
    assert target_of(tree, tmp_path / name) == tmp_path / name
    assert target_of(tree, tmp_path) == tmp_path / name
    with pytest.raises(Refused, match=r"which must be sglang-0\.5\.12\+npu"):
        target_of(tree, tmp_path / "other.whl")
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="neither a folder nor"):
        target_of(tree, tmp_path / "file")
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(Refused, match="exists already"):
        target_of(tree, tmp_path)


def test_target_written_meanwhile_is_kept(tmp_path: Path) -> None:
    tree = open_wheel(build_wheel(tmp_path), PROJECT)
    target = target_of(tree, tmp_path / "out")
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(Refused, match="File exists"):
        write_wheel(tree, make_plan(tree, SERIES).changes, target)
    assert [(path.name, path.read_bytes()) for path in target.parent.iterdir()] == [
        (target.name, b"mine")
    ]


def test_copies_are_named(tmp_path: Path) -> None:
    more = {"build/lib/sglang/srt/x.py": b"", "build/lib/sglang/y.py": b"", "sglangs/srt/x.py": b""}
    assert open_wheel(build_wheel(tmp_path, more), PROJECT).copies() == (
        PurePosixPath("build/lib/sglang"),
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"../evil.py": b""}, "'../evil.py', which a wheel never does"),
        ({"/evil.py": b""}, "which a wheel never does"),
        ({"sglang": b""}, "holds 'sglang', which a wheel never does"),
        ({f"{INFO}/METADATA": None}, "has no METADATA"),
        ({f"{INFO}/WHEEL": None, f"{INFO}/METADATA": None}, "has no METADATA, WHEEL"),
        ({"other-1.dist-info/METADATA": b""}, "has one .dist-info folder"),
        ({f"{INFO}/METADATA": b"Name: sglang\nVersion: 1\n"}, "do not agree"),
        ({f"{INFO}/METADATA": b"Name: sglang\n\nVersion: 0.5.12\n"}, "do not agree"),
        ({"sglang/__init__.py": None}, "holds no package `sglang`"),
        ({f"{INFO}/RECORD": f"sglang/{ARGUMENTS},sha256=x,1\n".encode()}, "not what RECORD says"),
        ({f"{INFO}/RECORD": b"sglang/version.py,sha512=x=,1\n"}, "not what RECORD says"),
    ],
)
def test_bad_wheel_is_refused(tmp_path: Path, changes: dict[str, bytes | None], said: str) -> None:
    check_refused(build_wheel(tmp_path, changes), said)


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("sglang/version.py", b"")
    check_refused(wheel, "more than once")


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("sglang/link.py")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    check_refused(wheel, "which a wheel never does")


@pytest.mark.parametrize("name", ["sglang.whl", "sglang-0.5.12.whl", "sglang-x-py3-none-any.whl"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    other = tmp_path / name
    shutil.copy(build_wheel(tmp_path), other)
    check_refused(other, "is not named as a wheel is")


def test_renamed_wheel_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "sglang-0.5.13-py3-none-any.whl"
    build_wheel(tmp_path).rename(other)
    check_refused(other, "do not agree")


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[: len(whole) // 2])
    check_refused(wheel, "is not readable as a wheel")
    wheel.write_bytes(whole.replace(b"DETERMINISTIC", b"deterministic"))
    check_refused(wheel, "is not readable as a wheel: Bad CRC-32")
    wheel.unlink()
    check_refused(wheel, "cannot be read: No such file")


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = open_wheel(build_wheel(tmp_path), PROJECT)
    target = target_of(tree, tmp_path / "out")
    changes = make_plan(tree, SERIES).changes

    def fail(tree: WheelTree, name: str) -> bytes:
        raise Refused("not readable")

    monkeypatch.setattr(WheelTree, "content", fail)
    with pytest.raises(Refused):
        write_wheel(tree, changes, target)
    assert list(target.parent.iterdir()) == []
