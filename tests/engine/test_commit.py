from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.engine.commit import commit
from sgl_npu_patch.engine.errors import Interrupted, Refused
from sgl_npu_patch.engine.model import ChangeSet, FileChange
from tests.engine.package import build, contents, run, snapshot
from tests.upstream.program import ROOT

Step = Callable[[], None]
NEW_FILES = {"a.py": b"new a", "b/c.py": b"new c", "b/new/d.py": b"new d"}
OPERATIONS: tuple[tuple[object, str], ...] = (
    (tempfile, "mkstemp"),
    (os, "fdopen"),
    (os, "utime"),
    (Path, "chmod"),
    (Path, "hardlink_to"),
    (Path, "mkdir"),
    (Path, "read_bytes"),
    (Path, "replace"),
)
COUNT = 24
"""How many of them there are in one run; a test sees to it."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "b").mkdir(parents=True)
    (root / "a.py").write_bytes(b"old a")
    (root / "a.py").chmod(0o755)
    (root / "b/c.py").write_bytes(b"old c")
    (root / "b/c.py").chmod(0o600)
    for name in ("a.py", "b/c.py"):
        os.utime(root / name, ns=(10**18 + 1, 10**18 + 1))
    return root


def changes(root: Path) -> ChangeSet:
    return ChangeSet(
        tuple(
            FileChange(PurePosixPath(name), _read(root / name), after)
            for name, after in NEW_FILES.items()
        )
    )


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def nothing() -> None:
    pass


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, act: Step) -> Iterator[str]:
    """Call `act` in front of one of the operations; a name is yielded once it happened."""
    fired: list[str] = []
    count = 0

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def operation(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                fired.append(name)
                act()
            return real(*args, **kwargs)

        return operation

    for owner, name in OPERATIONS:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return iter(fired)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_all_files_are_written(tree: Path) -> None:
    commit(tree, changes(tree), nothing)
    assert contents(tree) == NEW_FILES


def test_modes_are_kept_and_new_files_follow_the_umask(tree: Path) -> None:
    mask = os.umask(0o027)
    try:
        commit(tree, changes(tree), nothing)
    finally:
        os.umask(mask)
    modes = {name: (tree / name).stat().st_mode & 0o777 for name in NEW_FILES}
    assert modes == {"a.py": 0o755, "b/c.py": 0o600, "b/new/d.py": 0o640}


def test_modification_time_differs_in_whole_seconds(tree: Path) -> None:
    before = {name: int((tree / name).stat().st_mtime) for name in ("a.py", "b/c.py")}
    os.utime(tree / "a.py")
    before["a.py"] = int((tree / "a.py").stat().st_mtime)
    commit(tree, changes(tree), nothing)
    assert not [name for name, old in before.items() if int((tree / name).stat().st_mtime) == old]


def test_nothing_to_write_touches_nothing(tree: Path) -> None:
    before = snapshot(tree)
    commit(tree, ChangeSet(()), nothing)
    assert snapshot(tree) == before


def test_a_hard_link_elsewhere_keeps_the_old_content(tree: Path, tmp_path: Path) -> None:
    # As package managers share files between environments.
    (tmp_path / "shared").hardlink_to(tree / "a.py")
    commit(tree, changes(tree), nothing)
    assert (tmp_path / "shared").read_bytes() == b"old a"


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_one_failing_operation_leaves_all_or_nothing(
    tree: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, planned = snapshot(tree), changes(tree)
    with monkeypatch.context() as patch:
        fired = fail_at(patch, number, no_space)
        try:
            commit(tree, planned, nothing)
        except Refused as error:
            failed: str | None = str(error)
        else:
            failed = None
    if failed is None:
        # A hard link is only the cheaper way to keep the old file.
        assert list(fired) == ["hardlink_to"]
        assert contents(tree) == NEW_FILES
    else:
        assert list(fired)
        assert failed.startswith(tuple(NEW_FILES))
        assert "No space left on device; nothing was changed" in failed
        assert snapshot(tree) == before


@pytest.mark.parametrize(("number", "happens"), [(COUNT, True), (COUNT + 1, False)])
def test_all_operations_are_counted(
    tree: Path, number: int, happens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = changes(tree)
    with monkeypatch.context() as patch:
        fired = fail_at(patch, number, nothing)
        commit(tree, planned, nothing)
    assert bool(list(fired)) is happens


COMPILED = ("a.pyc", "b/__pycache__/c.cpython-311.pyc", "b/__pycache__/c.cpython-312.opt-2.pyc")
OF_OTHERS = ("b/__pycache__/cc.cpython-311.pyc", "b/__pycache__/c.txt", "b/cc.pyc")


def compile_all(tree: Path) -> None:
    (tree / "b/__pycache__").mkdir()
    for name in (*COMPILED, *OF_OTHERS):
        (tree / name).write_bytes(name.encode())


def test_compiled_forms_of_written_files_are_removed(tree: Path) -> None:
    compile_all(tree)
    commit(tree, changes(tree), nothing)
    assert contents(tree) == {**NEW_FILES, **{name: name.encode() for name in OF_OTHERS}}


# Two operations for each: a name for it to be put aside under, and the renaming.
@pytest.mark.parametrize("number", range(1, COUNT + 2 * len(COMPILED) + 1))
def test_one_failing_operation_leaves_compiled_forms_too(
    tree: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_all(tree)
    before, planned = snapshot(tree), changes(tree)
    with monkeypatch.context() as patch:
        fired = fail_at(patch, number, no_space)
        try:
            commit(tree, planned, nothing)
        except Refused as error:
            assert "No space left on device; nothing was changed" in str(error)  # noqa: PT017
            assert snapshot(tree) == before
        else:
            assert not [name for name in COMPILED if (tree / name).exists()]
    assert list(fired)


def test_failing_verification_restores_everything(tree: Path) -> None:
    before, seen = snapshot(tree), {}

    def verify() -> None:
        seen.update({name: (tree / name).read_bytes() for name in NEW_FILES})
        raise AssertionError("not as planned")

    with pytest.raises(AssertionError, match="not as planned"):
        commit(tree, changes(tree), verify)
    assert seen == NEW_FILES
    assert snapshot(tree) == before


def test_what_cannot_be_restored_is_kept_and_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify() -> None:
        monkeypatch.setattr(Path, "replace", lambda *_: no_space())
        raise Refused("somebody interfered")

    with pytest.raises(Refused, match=r"could not be restored: b/c\.py \(kept in .*\.back\)"):
        commit(tree, changes(tree), verify)
    monkeypatch.undo()
    kept = {path.read_bytes() for path in tree.rglob("*.back")}
    assert kept == {b"old a", b"old c"}


@pytest.mark.parametrize("content", [b"edited", None], ids=["edited", "deleted"])
def test_file_changed_since_it_was_read(tree: Path, content: bytes | None) -> None:
    planned = changes(tree)
    if content is None:
        (tree / "b/c.py").unlink()
    else:
        (tree / "b/c.py").write_bytes(content)
    before = snapshot(tree)
    with pytest.raises(Refused, match=r"b/c\.py: .*nothing was changed"):
        commit(tree, planned, nothing)
    assert snapshot(tree) == before


def test_new_file_that_came_into_being(tree: Path) -> None:
    planned = changes(tree)
    (tree / "b/new").mkdir()
    (tree / "b/new/d.py").write_bytes(b"somebody's")
    before = snapshot(tree)
    with pytest.raises(Refused, match=r"b/new/d\.py: changed while it was being patched"):
        commit(tree, planned, nothing)
    assert snapshot(tree) == before


@pytest.mark.parametrize("name", ["a.py", "b/new/d.py", "b/new"])
def test_target_became_a_directory(tree: Path, name: str) -> None:
    planned = changes(tree)
    if name == "b/new":
        (tree / name).write_bytes(b"")
    else:
        (tree / name).unlink(missing_ok=True)
        (tree / name).mkdir(parents=True)
    before = snapshot(tree)
    with pytest.raises(Refused, match=r"cannot be written|reads back"):
        commit(tree, planned, nothing)
    assert snapshot(tree) == before


def test_link_inside_the_tree_is_followed_and_stays(tree: Path) -> None:
    (tree / "a.py").rename(tree / "real.py")
    (tree / "a.py").symlink_to("real.py")
    commit(tree, changes(tree), nothing)
    assert (tree / "a.py").is_symlink()
    assert (tree / "real.py").read_bytes() == b"new a"
    assert (tree / "real.py").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("what", ["a.py", "b"], ids=["file", "folder"])
def test_link_out_of_the_tree_is_refused(tree: Path, tmp_path: Path, what: str) -> None:
    (tree / what).rename(tmp_path / "outside")
    (tree / what).symlink_to(tmp_path / "outside")
    before = snapshot(tmp_path)
    with pytest.raises(Refused, match="a symbolic link leads out of the tree"):
        commit(tree, changes(tree), nothing)
    assert snapshot(tmp_path) == before


def test_root_may_itself_be_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    commit(tmp_path / "link", changes(tree), nothing)
    assert contents(tree) == NEW_FILES


def test_leftovers_of_a_killed_run_do_not_disturb(tree: Path) -> None:
    (tree / ".a.py.abcd1234.tmp").write_bytes(b"half")
    (tree / ".a.py.abcd1234.back").write_bytes(b"old a")
    commit(tree, changes(tree), nothing)
    assert {name: (tree / name).read_bytes() for name in NEW_FILES} == NEW_FILES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("operation", range(1, COUNT + 1, 3))
def test_signal_leaves_everything_as_it_was(
    tree: Path, number: int, operation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, planned, handler = snapshot(tree), changes(tree), signal.getsignal(number)
    with monkeypatch.context() as patch:
        fail_at(patch, operation, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted) as interrupted:
            commit(tree, planned, nothing)
    assert interrupted.value.signum == number
    assert snapshot(tree) == before
    assert signal.getsignal(number) is handler


def test_signal_while_verifying(tree: Path) -> None:
    before = snapshot(tree)
    with pytest.raises(Interrupted):
        commit(tree, changes(tree), lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert snapshot(tree) == before


def test_what_nohup_ignores_stays_ignored(tree: Path) -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        commit(tree, changes(tree), lambda: os.kill(os.getpid(), signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert contents(tree) == NEW_FILES


KILLED = """\
import os, signal, sys
from pathlib import Path
from sgl_npu_patch import cli

left, real = int(sys.argv.pop(1)), Path.replace

def replace(self, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(self, target)

Path.replace = replace
cli.main()
"""


@pytest.mark.parametrize("replaced", range(5))
def test_run_after_a_kill_completes_the_change(tmp_path: Path, replaced: int) -> None:
    build(tmp_path / "whole")
    assert run("apply", tmp_path / "whole").code == 0
    tree = tmp_path / "killed"
    build(tree)
    command = [sys.executable, "-c", KILLED, str(replaced), "apply", str(tree)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -signal.SIGKILL
    leftovers = [path for path in tree.rglob(".*") if path.suffix in {".tmp", ".back"}]
    assert leftovers
    again = run("apply", tree)
    assert again.code == 0, again.stderr
    for path in leftovers:
        path.unlink()
    assert contents(tree) == contents(tmp_path / "whole")


def test_a_killed_run_never_names_a_missing_module(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    build(tree)
    command = [sys.executable, "-c", KILLED, "2", "apply", str(tree)]
    subprocess.run(command, check=False, cwd=ROOT)
    pristine = tmp_path / "pristine"
    build(pristine)
    before = contents(pristine)
    changed = [Path(name) for name, data in contents(tree).items() if data != before.get(name)]
    written = [path.name for path in changed if not path.name.startswith(".")]
    assert written == ["launch_guards.py", "npu_ops.py"]


def test_old_file_is_copied_where_links_cannot_be_made(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tree)
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: no_space())
    copies = []
    copy = shutil.copy2
    monkeypatch.setattr(shutil, "copy2", lambda a, b: copies.append(copy(a, b)))
    with pytest.raises(Interrupted):
        commit(tree, changes(tree), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert len(copies) == 2
    assert snapshot(tree) == before
