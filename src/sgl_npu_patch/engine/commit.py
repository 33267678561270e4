"""Write a change set to a directory: every file or none.

The promise: when `commit` returns, all files have their new bytes; when it raises, all have the
bytes they had, apart from what another program changed meanwhile. Its limit: a process that is
killed between two replacements (SIGKILL, power) leaves some files new and some old; each file is
whole, and running `apply` again completes the change.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sgl_npu_patch.engine.errors import Interrupted, Refused
from sgl_npu_patch.engine.overlay import ChangeSet, FileChange

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))


@dataclass(frozen=True, slots=True)
class _Write:
    change: FileChange
    target: Path
    temporary: Path
    mtime_ns: int | None


def commit(root: Path, changes: ChangeSet, verify: Callable[[], None]) -> None:
    """Write a change set below a root directory.

    Args:
        verify: called once all files are written and read back; if it raises, everything is
            restored.

    Raises:
        Refused: a file changed since it was read, or cannot be written.
        Interrupted: SIGINT or SIGTERM came meanwhile; everything is as before.
    """
    made: list[Path] = []
    writes: list[_Write] = []
    done: list[_Write] = []
    with _deferred_signals() as pending:
        try:
            writes.extend(_prepare(root, change, made) for change in changes.changes)
            for write in writes:
                _check_unchanged(write)
            for write in writes:
                if pending:
                    raise Interrupted(pending[0])
                write.temporary.replace(write.target)
                done.append(write)
                _touch(write)
            for write in done:
                _check_written(write)
            verify()
            if pending:
                raise Interrupted(pending[0])
        except BaseException as error:
            lost = _restore(done)
            _clean(writes, made)
            if lost:
                raise Refused(
                    f"{error}; and these files could not be restored: {', '.join(lost)}"
                ) from error
            if isinstance(error, OSError):
                raise Refused(
                    f"{error.filename or root}: cannot be written: {error.strerror}; "
                    "nothing was changed"
                ) from error
            raise


def _prepare(root: Path, change: FileChange, made: list[Path]) -> _Write:
    target = root / change.path
    if target.is_symlink():
        resolved = target.resolve()
        if not resolved.is_relative_to(root.resolve()):
            raise Refused(
                f"{change.path}: is a symbolic link out of the tree, to {resolved}; "
                "nothing was changed; give the tree that holds the file"
            )
        target = resolved
    for folder in reversed(target.parents):
        if not folder.exists():
            folder.mkdir()
            made.append(folder)
    before = target.stat() if change.before is not None else None
    if before is not None and not os.access(target, os.W_OK):
        raise Refused(f"{change.path}: is read-only; nothing was changed")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(change.after)
        temporary.chmod(stat.S_IMODE(before.st_mode) if before else 0o666 & ~_umask())
        if before is not None and hasattr(os, "chown"):
            with contextlib.suppress(OSError):
                os.chown(temporary, before.st_uid, before.st_gid)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return _Write(change, target, temporary, before.st_mtime_ns if before else None)


def _check_unchanged(write: _Write) -> None:
    try:
        now: bytes | None = write.target.read_bytes()
    except FileNotFoundError:
        now = None
    if now != write.change.before:
        raise Refused(
            f"{write.change.path}: changed while it was being patched; nothing was changed; "
            "run again when no other program writes to the tree"
        )


def _check_written(write: _Write) -> None:
    if write.target.read_bytes() != write.change.after:
        raise Refused(f"{write.change.path}: reads back differently; nothing was changed")


def _touch(write: _Write) -> None:
    """Give a replaced file another modification time in whole seconds.

    A compiled `.pyc` is taken for current when size and whole second agree.
    """
    now = time.time_ns()
    if write.mtime_ns is not None and write.mtime_ns // 10**9 == now // 10**9:
        now += 10**9
    os.utime(write.target, ns=(now, now))


def _restore(done: list[_Write]) -> list[str]:
    lost = []
    for write in reversed(done):
        try:
            if write.change.before is None:
                write.target.unlink(missing_ok=True)
                continue
            mode = stat.S_IMODE(write.target.stat().st_mode)
            back = write.temporary.with_suffix(".back")
            back.write_bytes(write.change.before)
            back.chmod(mode)
            assert write.mtime_ns is not None
            os.utime(back, ns=(write.mtime_ns, write.mtime_ns))
            back.replace(write.target)
        except OSError:
            lost.append(str(write.change.path))
    return lost


def _clean(writes: list[_Write], made: list[Path]) -> None:
    for write in writes:
        with contextlib.suppress(OSError):
            write.temporary.unlink(missing_ok=True)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _deferred_signals() -> Iterator[list[int]]:
    """Note signals instead of dying of them, so that a commit is never left half done."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    old = {number: signal.signal(number, lambda n, _: seen.append(n)) for number in _SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
