from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.upstream.program import program
from tests.upstream.releases import copy_tree

RELEASE = "0.5.12.post1"
ARGUMENTS = "python/sglang/srt/server_args.py"


def git(repository: Path, *arguments: str) -> bytes:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    # The user's and the machine's configuration must not change what is tested.
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *identity, *arguments]
    done = subprocess.run(
        command, check=True, cwd=repository, env=environment, stdout=subprocess.PIPE
    )
    return done.stdout


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release as SGLang's own repository lays it out, with one commit."""
    repository = tmp_path_factory.mktemp("committed") / "repository"
    copy_tree(RELEASE, repository / "python")
    (repository / "README.md").write_text("not part of the package\n", encoding="utf-8")
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--no-gpg-sign", "--message", RELEASE)
    return repository


@pytest.fixture
def repository(committed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(committed, tmp_path / "repository"))


@pytest.mark.parametrize(
    "below", ["", "python", "python/sglang"], ids=["root", "python", "package"]
)
def test_every_form_of_path_gives_the_same_result(repository: Path, below: str) -> None:
    path = repository / below
    diff = program("diff", path)
    assert diff.code == 0, diff.stderr
    apply = program("apply", path, "--format", "json")
    assert apply.code == 0, apply.stderr
    modified = git(repository, "diff", "--name-only").decode().splitlines()
    assert sorted(modified) == sorted(
        (path / each).relative_to(repository).as_posix() for each in apply.changed
    )
    patched = {name: (repository / name).read_bytes() for name in modified}
    added = [(path / each).relative_to(repository) for each in apply.added]
    patched |= {str(each): (repository / each).read_bytes() for each in added}
    git(repository, "clean", "--quiet", "-fd")
    git(repository, "checkout", "--quiet", "--", ".")
    # The diff counts from the work tree's root, whatever PATH was.
    patch = repository.parent / "deterministic.patch"
    patch.write_bytes(diff.stdout)
    git(repository, "apply", str(patch))
    assert {name: (repository / name).read_bytes() for name in patched} == patched


def test_relative_path_from_inside(repository: Path) -> None:
    whole = program("diff", repository).stdout
    assert whole
    assert program("diff", ".", cwd=repository / "python").stdout == whole
    assert program("diff", "sglang", cwd=repository / "python").stdout == whole


@pytest.mark.parametrize("staged", [False, True], ids=["unstaged", "staged"])
def test_uncommitted_change_to_a_file_of_ours_is_refused(repository: Path, staged: bool) -> None:
    with (repository / ARGUMENTS).open("a", encoding="utf-8") as file:
        file.write("\n# work in progress\n")
    if staged:
        git(repository, "add", ARGUMENTS)
    before = git(repository, "status", "--porcelain")
    refused = program("apply", repository)
    assert refused.code == 4
    assert ARGUMENTS in refused.stderr
    assert "--allow-dirty" in refused.stderr
    assert git(repository, "status", "--porcelain") == before
    assert program("status", repository).code == 0
    allowed = program("apply", repository, "--allow-dirty")
    assert allowed.code == 0, allowed.stderr
    assert b"# work in progress" in (repository / ARGUMENTS).read_bytes()


def test_uncommitted_change_elsewhere_is_nobodys_business(repository: Path) -> None:
    (repository / "README.md").write_text("changed\n", encoding="utf-8")
    (repository / "python" / "sglang" / "notes.txt").write_text("new\n", encoding="utf-8")
    assert program("apply", repository).code == 0


def test_second_run_before_the_commit_is_no_refusal(repository: Path) -> None:
    assert program("apply", repository).code == 0
    again = program("apply", repository, "--format", "json")
    assert again.code == 0, again.stderr
    assert again.report["changed"] == again.report["added"] == []


@pytest.mark.parametrize("below", ["python/sglang/srt", "python/sglang/srt/layers"])
def test_part_of_the_package_is_refused(repository: Path, below: str) -> None:
    refused = program("apply", repository / below)
    assert refused.code == 4
    assert refused.stdout == b""
