from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.repository import open_repository
from tests.engine.package import ARGUMENTS, SOURCES
from tests.engine.repositories import (
    fake_program,
    git,
    output,
    partial_clone,
    refused,
    statuses,
)

PACKAGE = PurePosixPath("python/sglang")


def test_partial_clone(root: Path) -> None:
    clone = partial_clone(root)
    packs = clone / ".git/objects/pack"
    before = len(list(packs.glob("*.pack")))
    assert statuses(clone) == statuses(root)
    assert len(list(packs.glob("*.pack"))) == before + 1
    assert statuses(clone) == statuses(root)
    assert len(list(packs.glob("*.promisor"))) == len(list(packs.glob("*.pack"))) == before + 1
    assert "missing" not in output(clone, "fsck")


def test_partial_clone_reads_a_single_file(root: Path) -> None:
    with open_repository(partial_clone(root), PROJECT) as opened:
        assert opened.open("HEAD").read(PACKAGE / ARGUMENTS) == SOURCES[ARGUMENTS].encode()


def test_partial_clone_whose_origin_is_gone(root: Path) -> None:
    clone = partial_clone(root)
    root.rename(root.parent / "gone")
    said = refused(clone)
    assert "this partial clone lacks 9 files, which cannot be fetched (" in said
    assert "does not appear to be a git repository" in said


@pytest.mark.parametrize("options", [["--filter=blob:none"], ["--filter=tree:0"]])
def test_partial_clone_that_cannot_be_completed(root: Path, options: list[str]) -> None:
    clone = partial_clone(root, *options)
    if options == ["--filter=blob:none"]:
        git(clone, "config", "--unset", "remote.origin.url")
    assert "a partial clone that lacks folders or knows no origin" in refused(clone)


HOSTILE = (
    "core.alternateRefsCommand",
    "core.askPass",
    "core.editor",
    "core.fsmonitor",
    "core.gitProxy",
    "core.pager",
    "core.sshCommand",
    "credential.helper",
    "diff.external",
    "gpg.program",
    "pager.cat-file",
    "pager.rev-parse",
    "pager.rev-list",
    "remote.origin.receivepack",
    "remote.origin.uploadpack",
    "sequence.editor",
    "uploadpack.packObjectsHook",
)


@pytest.fixture
def hostile(root: Path, tmp_path: Path) -> Path:
    clone = partial_clone(root)
    program = fake_program(tmp_path)
    for name in HOSTILE:
        git(clone, "config", name, str(program))
    for name in ("cat-file", "rev-parse", "rev-list", "fetch", "config"):
        git(clone, "config", f"alias.{name}", f"!{program}")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "pre-auto-gc", "reference-transaction", "post-index-change"):
        (hooks / name).symlink_to(program)
        (clone / ".git/hooks").mkdir(exist_ok=True)
        (clone / ".git/hooks" / name).symlink_to(program)
    git(clone, "config", "core.hooksPath", str(hooks))
    (tmp_path / "ran").unlink(missing_ok=True)
    return clone


def test_hostile_configuration_would_run_something(hostile: Path, tmp_path: Path) -> None:
    blob = f"HEAD:{PACKAGE / ARGUMENTS}"
    subprocess.run(["git", "cat-file", "-p", blob], check=False, cwd=hostile, capture_output=True)
    assert (tmp_path / "ran").exists()


def test_hostile_configuration_runs_nothing(root: Path, hostile: Path, tmp_path: Path) -> None:
    assert statuses(hostile) == statuses(root)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("scheme", ["ext::", "evil::", "ssh://-oProxyCommand=", "fd::"])
def test_hostile_address_runs_nothing(hostile: Path, tmp_path: Path, scheme: str) -> None:
    git(hostile, "config", "remote.origin.vcs", "ext")
    git(hostile, "config", "remote.origin.url", f"{scheme}{tmp_path}/program %S")
    git(hostile, "config", "protocol.allow", "always")
    assert "cannot be fetched" in refused(hostile)
    assert not (tmp_path / "ran").exists()


def test_address_is_no_configuration(hostile: Path, tmp_path: Path) -> None:
    address = f'x"\n[core]\nsshCommand = {tmp_path}/program\n[remote "origin"]\nurl = "ssh://h/x\\'
    git(hostile, "config", "remote.origin.url", address)
    assert "cannot be fetched" in refused(hostile)
    assert not (tmp_path / "ran").exists()
