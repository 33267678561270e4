from __future__ import annotations

import hashlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees import git_contents
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.trees.git_objects import Objects
from sgl_npu_patch.engine.trees.repository import Repository, open_repository
from sgl_npu_patch.engine.trees.revision import GitTree
from sgl_npu_patch.engine.trees.version import package_version
from tests.engine.package import ARGUMENTS, SOURCES, build, plan_of, snapshot
from tests.engine.test_git import git

PACKAGE = PurePosixPath("python/sglang")


def output(folder: Path, *arguments: str, given: bytes = b"") -> str:
    command = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", *arguments]
    done = subprocess.run(command, check=True, cwd=folder, input=given, capture_output=True)
    return done.stdout.decode().strip()


def commit(root: Path, *options: str) -> str:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", "next", *options)
    return output(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = (tmp_path / "repository").resolve()
    build(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder)
    return folder


@pytest.fixture
def repository(root: Path) -> Iterator[Repository]:
    with open_repository(root, PROJECT) as opened:
        yield opened


def partial_clone(root: Path, *options: str) -> Path:
    git(root, "config", "uploadpack.allowFilter", "true")
    git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    clone = root.parent / "clone"
    filters = options or ("--filter=blob:none",)
    git(root.parent, "clone", "--quiet", "--no-checkout", *filters, root.as_uri(), str(clone))
    return clone


def judged(folder: Path, revision: str = "HEAD") -> list[str]:
    with open_repository(folder, PROJECT) as opened:
        return [outcome.status for outcome in make_plan(opened.open(revision), SERIES).outcomes]


def refused(folder: Path, revision: str = "HEAD") -> str:
    with pytest.raises(Refused) as caught:
        judged(folder, revision)
    return str(caught.value)


def test_reads_as_a_directory_does(root: Path) -> None:
    for odd in (".hidden.py", ".folder/x.py", "__pycache__/x.py", "data.txt", "srt/new\n\u00e9.py"):
        target = root / "python/sglang" / odd
        target.parent.mkdir(exist_ok=True)
        target.write_text("def is_npu")
    revision = commit(root)
    directory = open_directory(root, PROJECT)
    with open_repository(root, PROJECT) as opened:
        tree = opened.open("main")
        assert (tree.package, tree.revision, tree.label) == (PACKAGE, revision, str(root))
        for needle in (b"def is_npu", b"import", b"nothing at all"):
            assert tree.containing(needle) == directory.containing(needle)
        arguments = PACKAGE / ARGUMENTS
        assert tree.containing(b"is_npu", [arguments]) == ()
        assert tree.containing(b"logging", [arguments]) == (arguments,)
        for path in ("python/sglang/no.py", "no/such.py", "python/sglang/version.py/x.py"):
            assert tree.read(PurePosixPath(path)) is None
        assert tree.read(arguments) == directory.read(arguments)
        assert tree.blob(arguments) == output(root, "rev-parse", f"HEAD:{arguments}")
        assert package_version(tree) == "0.0.1"
        with pytest.raises(Refused, match="not a regular file"):
            tree.read(PACKAGE)
        plan = make_plan(tree, SERIES)
    assert plan.outcomes == plan_of(root).outcomes
    assert plan.changes == plan_of(root).changes


def test_uncommitted_changes_are_not_seen(root: Path, repository: Repository) -> None:
    (root / "python/sglang" / ARGUMENTS).write_text("changed")
    git(root, "add", "--all")
    tree = repository.open("HEAD")
    assert tree.read(PACKAGE / ARGUMENTS) == SOURCES[ARGUMENTS].encode()


@pytest.mark.parametrize("layout", ["python/sglang", "sglang", "."])
@pytest.mark.parametrize("inside", ["", "in ner/\u00e9"])
def test_layouts(tmp_path: Path, layout: str, inside: str) -> None:
    build(tmp_path / inside, layout)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    with open_repository(tmp_path / inside, PROJECT) as opened:
        tree = opened.open("HEAD")
        assert tree.package == PurePosixPath(layout)
        assert opened.prefix == PurePosixPath(inside)
        plan = make_plan(tree, SERIES)
    assert plan.outcomes == plan_of(tmp_path / inside).outcomes


def test_folder_that_the_revision_lacks(root: Path) -> None:
    (root / "later").mkdir()
    assert "not a tree of SGLang" in refused(root / "later")


def test_no_package(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "empty")
    assert f"{tmp_path} at HEAD: not a tree of SGLang: looked for" in refused(tmp_path)


@pytest.mark.parametrize(
    "inner", ["sglang/srt", "python/build/lib/sglang/srt", "build/lib.x/sglang/srt"]
)
def test_copies(root: Path, inner: str) -> None:
    (root / inner).mkdir(parents=True)
    (root / inner / "x.py").touch()
    commit(root)
    assert open_directory(root, PROJECT).copies() == (PurePosixPath(inner).parent,)
    (root / "build").mkdir(exist_ok=True)
    (root / "build/liblink").symlink_to("../python")
    commit(root)
    with open_repository(root, PROJECT) as opened:
        assert opened.open("HEAD").copies() == (PurePosixPath(inner).parent,)


def test_every_name_of_a_commit(root: Path, repository: Repository) -> None:
    first = output(root, "rev-parse", "HEAD")
    git(root, "tag", "light")
    git(root, "tag", "--annotate", "--message", "x", "heavy")
    git(root, "tag", "--annotate", "--message", "x", "of-tag", "heavy")
    git(root, "branch", "od\u00e9/d")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "second")
    names = (
        "light",
        "heavy",
        "of-tag",
        "od\u00e9/d",
        "refs/tags/light",
        first,
        first[:8],
        "HEAD~1",
    )
    for name in (
        *names,
        "main^",
        "@{1}",
        "HEAD@{1}",
        "@~",
        "HEAD~1^{/next}",
        "light^{}",
        f"v-1-g{first[:7]}",
    ):
        assert repository.resolve(name) == first, name
    assert repository.resolve("main") == output(root, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "no-such",
        "-h",
        "--all",
        "--upload-pack=touch ran",
        "--output=ran",
        "--git-dir=/",
        "--",
        "main..main",
        "main...main",
        "^main",
        "main main",
        "main:",
        "main:python",
        ":python",
        "main^{tree}",
        "main^@",
        "main^!",
        "@{u}",
        "HEAD@{99}",
        "main\nmain",
        "main\0",
        "$(touch ran)",
        "`touch ran`",
        "; touch ran",
        "../repository",
        "\udcff",
        "f" * 40,
        "f" * 5000,
    ],
)
def test_what_names_no_commit(root: Path, repository: Repository, name: str) -> None:
    before = snapshot(root)
    with pytest.raises(Refused, match=r"cannot name a revision|is no revision of this repository"):
        repository.open(name)
    assert snapshot(root) == before


def test_object_that_is_no_commit(root: Path, repository: Repository) -> None:
    git(root, "tag", "blob", f"HEAD:python/sglang/{ARGUMENTS}")
    git(root, "tag", "tree", "HEAD:python")
    for name in ("blob", "tree", output(root, "rev-parse", "tree")):
        with pytest.raises(Refused, match="is no revision"):
            repository.open(name)


def test_ambiguous_short_id(root: Path, repository: Repository) -> None:
    commits = "".join(
        f"commit refs/heads/many\ncommitter t <t@localhost> {n} +0000\ndata 0\n\n"
        for n in range(600)
    )
    output(root, "fast-import", "--quiet", given=commits.encode())
    ids = output(root, "rev-list", "many").split()
    short, times = Counter(each[:4] for each in ids).most_common(1)[0]
    assert times > 1
    with pytest.raises(Refused, match=r"is ambiguous.*more digits"):
        repository.resolve(short)


def test_ambiguous_name(root: Path, repository: Repository) -> None:
    git(root, "tag", "main")
    git(root, "config", "core.warnAmbiguousRefs", "false")
    with pytest.raises(Refused, match=r"'main' is ambiguous.*refs/heads/NAME"):
        repository.resolve("main")
    assert repository.resolve("refs/heads/main") == repository.resolve("tags/main")


@pytest.mark.parametrize("name", ["python", "python/sglang", "python/sglang/srt"])
@pytest.mark.parametrize("kind", ["120000", "160000"])
def test_link_or_submodule_above_the_package(root: Path, name: str, kind: str) -> None:
    git(root, "rm", "-r", "--quiet", "--cached", name)
    found = output(root, "rev-parse", "HEAD" if kind == "160000" else f"HEAD:{PACKAGE}/version.py")
    git(root, "update-index", "--add", "--cacheinfo", f"{kind},{found},{name}")
    git(root, "commit", "--quiet", "--message", "next")
    said = refused(root)
    if name.endswith("srt"):
        assert "not a tree of SGLang" in said
    else:
        what = "symbolic link" if kind == "120000" else "submodule"
        assert f"{name} is a {what} in this revision" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("python/sglang/srt/x.py", "symbolic link"),
        ("python/sglang/version.py", "symbolic link"),
        ("python/sglang/srt/folder", ""),
        ("python/sglang/.x.py", ""),
        ("elsewhere.py", ""),
    ],
)
def test_link(root: Path, name: str, said: str) -> None:
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to("__init__.py")
    commit(root)
    if said:
        assert f"{name} is a {said} in this revision, which is not followed" in refused(root)
    else:
        assert judged(root) == judged(root, "HEAD~1")


@pytest.mark.parametrize(("name", "read"), [("python/sglang/sub", True), ("3rdparty/sub", False)])
def test_submodule(root: Path, name: str, read: bool) -> None:
    head = output(root, "rev-parse", "HEAD")
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},{name}")
    git(root, "commit", "--quiet", "--message", "next")
    if read:
        assert f"{name} is a submodule in this revision" in refused(root)
    else:
        assert judged(root) == judged(root, "HEAD~1")


def test_bytes_are_those_stored(root: Path, tmp_path: Path) -> None:
    program = fake_program(tmp_path)
    data = b"# $Id$ $Format:%H$\r\n\xef\xbb\xbf\xff\n\r"
    target = root / "python/sglang/srt/odd.py"
    target.write_bytes(data)
    commit(root)
    (root / ".gitattributes").write_text(
        "*.py text eol=crlf ident export-subst filter=x diff=x working-tree-encoding=UTF-16\n"
    )
    git(root, "add", ".gitattributes")
    git(root, "commit", "--quiet", "--message", "next")
    for name in ("filter.x.smudge", "filter.x.clean", "filter.x.process", "diff.x.textconv"):
        git(root, "config", name, str(program))
    git(root, "config", "core.autocrlf", "true")
    with open_repository(root, PROJECT) as opened:
        tree = opened.open("HEAD")
        assert tree.read(PACKAGE / "srt/odd.py") == data
        assert tree.containing(b"\xff\n\r") == (PACKAGE / "srt/odd.py",)
    assert not (tmp_path / "ran").exists()


def test_path_that_is_not_utf8(root: Path) -> None:
    blob = output(root, "hash-object", "-w", "--stdin", given=b"is_npu = 1\n")
    listed = output(root, "ls-tree", "HEAD:python/sglang/srt").encode()
    odd = listed + f"\n100644 blob {blob}\t".encode() + b"\xff\xfe.py\0"
    tree = output(root, "mktree", "-z", given=odd.replace(b"\n", b"\0"))
    git(root, "rm", "-r", "--quiet", "--cached", "python/sglang/srt")
    git(root, "read-tree", "--prefix=python/sglang/srt", tree)
    git(root, "commit", "--quiet", "--message", "next")
    with open_repository(root, PROJECT) as opened:
        found = opened.open("HEAD").containing(b"is_npu = 1")
        assert [os.fsencode(path.name) for path in found] == [b"\xff\xfe.py"]
        assert opened.open("HEAD").read(found[0]) == b"is_npu = 1\n"
    assert judged(root) == judged(root, "HEAD~1")


def test_large_file(root: Path) -> None:
    data = b"# line\n" * 3_000_000 + b"is_large = 1\n"
    (root / "python/sglang/srt/large.py").write_bytes(data)
    commit(root)
    with open_repository(root, PROJECT) as opened:
        (found,) = opened.open("HEAD").containing(b"is_large")
        assert opened.open("HEAD").read(found) == data


def test_contents_beyond_those_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_contents, "_KEPT", 100)
    assert judged(root) == [outcome.status for outcome in plan_of(root).outcomes]


def test_each_content_is_asked_for_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    get = Objects.get

    def counted(self: Objects, ids: list[str]) -> Iterator[tuple[str, bytes]]:
        asked.update(ids)
        return get(self, ids)

    monkeypatch.setattr(Objects, "get", counted)
    (root / "python/sglang/srt/new.py").write_text("x = 1\n")
    commit(root)
    with open_repository(root, PROJECT) as opened:
        for revision in ("HEAD~1", "HEAD", "main"):
            make_plan(opened.open(revision), SERIES)
    assert {name for name, times in asked.items() if times > 1} == set()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a repository in which files and folders change, move, go and come again."""
    root = tmp_path_factory.mktemp("history")
    build(root)
    git(root, "init", "--quiet")
    for number, words in enumerate(["ab", "cd", "ab bc", "", "cd de", "ab"]):
        folder = root / f"python/sglang/{'ab'[number % 2]}/inner"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number // 2}.py").write_text(words)
        (root / "python/sglang/same.py").write_text(words)
        if number == 4:
            git(root, "mv", "python/sglang/b", "python/sglang/moved")
        commit(root, "--allow-empty")
        git(root, "tag", f"v{number}")
    return root


QUESTIONS = st.tuples(st.integers(0, 5), st.sampled_from([b"ab", b"bc", b"cd", b"de", b"is_npu"]))


@settings(max_examples=40, deadline=None)
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=12), kept=st.sampled_from([0, 60, 1000]))
def test_answers_do_not_depend_on_earlier_questions(
    history: Path, questions: list[tuple[int, bytes]], kept: int
) -> None:
    with (
        mock.patch.object(git_contents, "_KEPT", kept),
        open_repository(history, PROJECT) as opened,
    ):
        trees = {number: opened.open(f"v{number}") for number, _ in questions}
        for number, needle in questions:
            with open_repository(history, PROJECT) as alone:
                expected = [
                    path
                    for path in alone.open(f"v{number}").containing(b"")
                    if needle in (alone.open(f"v{number}").read(path) or b"")
                ]
            assert list(trees[number].containing(needle)) == expected


@pytest.mark.parametrize("name", ["bare", "worktree", "sub"])
def test_kinds_of_repositories(root: Path, name: str) -> None:
    folder = root.parent / name
    if name == "bare":
        git(root.parent, "clone", "--quiet", "--bare", str(root), str(folder))
    elif name == "worktree":
        git(root, "worktree", "add", "--quiet", "--detach", str(folder))
    else:
        git(root.parent, "init", "--quiet", "outer")
        git(root.parent / "outer", "submodule", "--quiet", "add", str(root), "sub")
        folder = root.parent / "outer/sub"
    assert judged(folder) == judged(root)


def test_shallow_clone(root: Path) -> None:
    git(root, "commit", "--quiet", "--allow-empty", "--message", "second")
    git(root.parent, "clone", "--quiet", "--depth=1", root.as_uri(), "shallow")
    assert judged(root.parent / "shallow") == judged(root)
    assert "is no revision of this repository" in refused(root.parent / "shallow", "HEAD~1")


def test_sha256(tmp_path: Path) -> None:
    build(tmp_path / "repository")
    git(tmp_path / "repository", "init", "--quiet", "--object-format=sha256")
    commit(tmp_path / "repository")
    expected = [outcome.status for outcome in plan_of(tmp_path / "repository").outcomes]
    assert judged(tmp_path / "repository") == expected
    assert judged(partial_clone(tmp_path / "repository")) == expected


def test_replaced_object(root: Path, repository: Repository) -> None:
    other = output(root, "hash-object", "-w", "--stdin", given=b"replaced\n")
    git(root, "replace", f"HEAD:{PACKAGE / ARGUMENTS}", other)
    tree = repository.open("HEAD")
    data = tree.read(PACKAGE / ARGUMENTS) or b""
    blob = b"blob %d\0%b" % (len(data), data)
    assert hashlib.sha1(blob, usedforsecurity=False).hexdigest() == tree.blob(PACKAGE / ARGUMENTS)


def test_partial_clone(root: Path) -> None:
    clone = partial_clone(root)
    packs = clone / ".git/objects/pack"
    before = len(list(packs.glob("*.pack")))
    assert judged(clone) == judged(root)
    assert len(list(packs.glob("*.pack"))) == before + 1
    assert judged(clone) == judged(root)
    assert len(list(packs.glob("*.promisor"))) == len(list(packs.glob("*.pack"))) == before + 1
    assert "missing" not in output(clone, "fsck")


def test_partial_clone_reads_a_single_file(root: Path) -> None:
    with open_repository(partial_clone(root), PROJECT) as opened:
        assert opened.open("HEAD").read(PACKAGE / ARGUMENTS) == SOURCES[ARGUMENTS].encode()


def test_partial_clone_whose_origin_is_gone(root: Path) -> None:
    clone = partial_clone(root)
    root.rename(root.parent / "gone")
    said = refused(clone)
    assert "this partial clone lacks 7 files, which cannot be fetched (" in said
    assert "does not appear to be a git repository" in said


@pytest.mark.parametrize("options", [["--filter=blob:none"], ["--filter=tree:0"]])
def test_partial_clone_that_cannot_be_completed(root: Path, options: list[str]) -> None:
    clone = partial_clone(root, *options)
    if options == ["--filter=blob:none"]:
        git(clone, "config", "--unset", "remote.origin.url")
    assert "a partial clone that lacks folders or knows no origin" in refused(clone)


def test_goes_on_after_a_damaged_revision(root: Path) -> None:
    (root / "python/sglang/srt/bad.py").write_text("x = 1\n")
    commit(root)
    blob = output(root, "rev-parse", "HEAD:python/sglang/srt/bad.py")
    (root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with open_repository(root, PROJECT) as opened:
        with pytest.raises(Refused, match=f"object {blob} cannot be read"):
            make_plan(opened.open("HEAD"), SERIES)
        plan = make_plan(opened.open("HEAD~1"), SERIES)
    assert [outcome.status for outcome in plan.outcomes] == judged(root, "HEAD~1")


def fake_program(folder: Path) -> Path:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{folder}/ran'\nexit 1\n")
    program.chmod(0o755)
    return program


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
    assert judged(hostile) == judged(root)
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


def test_nothing_of_the_repository_changes(root: Path) -> None:
    (root / "python/sglang/new.py").touch()
    (root / "python/sglang" / ARGUMENTS).write_text("changed")
    git(root, "add", f"python/sglang/{ARGUMENTS}")
    os.utime(root / "python/sglang/version.py", (0, 0))
    before = snapshot(root)
    judged(root)
    assert snapshot(root) == before


def test_variables_of_a_hook_are_dropped(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    other = tmp_path / "other"
    expected = judged(root)
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / ".git/objects",
        "GIT_NAMESPACE": "x",
        "GIT_PREFIX": "sub/",
    }.items():
        monkeypatch.setenv(name, str(value))
    assert judged(root) == expected


def test_what_is_no_repository(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert "not a git repository" in refused(tmp_path / "folder")
    assert "is not a folder; --rev needs a git repository" in refused(tmp_path / "file")
    assert "does not exist; --rev needs a git repository" in refused(tmp_path / "none")


def test_git_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    assert "git cannot be run" in refused(root)


def test_process_ends_with_the_repository(root: Path) -> None:
    with open_repository(root, PROJECT) as opened:
        tree: GitTree = opened.open("HEAD")
        process = opened._objects._process
        assert process is not None
        assert process.poll() is None
    assert process.returncode == 0
    assert tree.read(PACKAGE / "version.py") == SOURCES["version.py"].encode()
    opened._objects.close()
