"""Write a change set to a directory: every file or none.

The promise: when `commit` returns, all files have their new bytes and no compiled form of an old
one is left beside them; when it raises, all have the bytes they had, apart from what another
program changed meanwhile. Its limit: a process that is
killed between two replacements (SIGKILL, power) leaves some files new and some old; each file is
whole, and running `apply` again completes the change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sgl_npu_patch.engine.errors import Interrupted, Refused
from sgl_npu_patch.engine.model import ChangeSet, FileChange

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))


@dataclass(frozen=True, slots=True)
class _Write:
    """Track the writing of one file; ``backup`` is where its old content is kept meanwhile."""

    change: FileChange
    target: Path
    temporary: Path
    backup: Path | None


def commit(root: Path, changes: ChangeSet, verify: Callable[[], None]) -> None:
    """Write a change set below a root directory.

    Args:
        verify: called once all files are written and read back; if it raises, everything is
            restored.

    Raises:
        Refused: a file changed since it was read, or cannot be written.
        Interrupted: SIGINT or SIGTERM came meanwhile; everything is as before.
    """
    base = root.resolve()
    made: list[Path] = []
    writes: list[_Write] = []
    done: list[_Write] = []
    removed: list[tuple[Path, Path]] = []
    with _deferred_signals() as pending:
        try:
            # New modules first, so that no edited file ever calls one that is missing.
            for change in sorted(changes.changes, key=lambda change: change.before is not None):
                with _naming(change):
                    _prepare(base, change, made, writes)
            for write in writes:
                with _naming(write.change):
                    _check_unchanged(write)
            for write in writes:
                if pending:
                    raise Interrupted(pending[0])
                with _naming(write.change):
                    write.temporary.replace(write.target)
                done.append(write)
            for write in done:
                with _naming(write.change):
                    _put_aside(_compiled(base / write.change.path), removed)
            for write in done:
                with _naming(write.change):
                    _check_written(write)
            verify()
            if pending:
                raise Interrupted(pending[0])
        except BaseException as error:
            lost = _restore(done)
            for compiled, aside in removed:
                with contextlib.suppress(OSError):
                    aside.replace(compiled)
            _clean([write for write in writes if write not in lost], made)
            if lost:
                kept = ", ".join(f"{write.change.path} (kept in {write.backup})" for write in lost)
                raise Refused(f"{error}; but these files could not be restored: {kept}") from error
            raise
        _clean(writes, [])
        for _, aside in removed:
            with contextlib.suppress(OSError):
                aside.unlink()


@contextlib.contextmanager
def _naming(change: FileChange) -> Iterator[None]:
    """Name the file in an error that stops its writing."""
    try:
        yield
    except OSError as error:
        raise Refused(
            f"{change.path}: cannot be written: {error.strerror}; nothing was changed"
        ) from error


def _prepare(base: Path, change: FileChange, made: list[Path], writes: list[_Write]) -> None:
    """Lay the new file and the old one beside the target, so that only renames remain."""
    target = (base / change.path).resolve()
    if not target.is_relative_to(base):
        raise Refused(
            f"{change.path}: a symbolic link leads out of the tree, to {target}; "
            "nothing was changed; give the tree that holds the file"
        )
    for folder in reversed(target.parents):
        if not folder.exists():
            folder.mkdir()
            made.append(folder)
    before = target.stat() if change.before is not None else None
    if before is not None and not os.access(target, os.W_OK):
        raise Refused(f"{change.path}: is read-only; nothing was changed")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    backup = temporary.with_suffix(".back") if before is not None else None
    writes.append(_Write(change, target, temporary, backup))
    with os.fdopen(descriptor, "wb") as file:
        file.write(change.after)
    if before is not None and hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(temporary, before.st_uid, before.st_gid)
    temporary.chmod(stat.S_IMODE(before.st_mode) if before else 0o666 & ~umask())
    _date(temporary, before)
    if backup is not None:
        try:
            backup.hardlink_to(target)
        except (OSError, NotImplementedError):
            shutil.copy2(target, backup)


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


def _compiled(source: Path) -> list[Path]:
    """List what Python may run in a source's place.

    An unchecked hash-based `.pyc` (PEP 552) is taken whatever the source says, and one of before
    `__pycache__` as soon as the source is missing.
    """
    if source.suffix != ".py":
        return []
    cached = source.parent / "__pycache__"
    beside = sorted(cached.iterdir()) if cached.is_dir() else []
    found = [path for path in beside if _is_compiled(path.name, source.stem)]
    legacy = source.with_suffix(".pyc")
    return [*found, legacy] if os.path.lexists(legacy) else found


def _is_compiled(name: str, stem: str) -> bool:
    return name.startswith(f"{stem}.") and name.endswith(".pyc")


def _put_aside(compiled: list[Path], removed: list[tuple[Path, Path]]) -> None:
    for path in compiled:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".back", dir=path.parent
        )
        os.close(descriptor)
        aside = Path(name)
        try:
            path.replace(aside)
        except OSError:
            aside.unlink()
            raise
        removed.append((path, aside))


def _check_written(write: _Write) -> None:
    if write.target.read_bytes() != write.change.after:
        raise Refused(f"{write.change.path}: reads back differently; nothing was changed")


def _date(temporary: Path, before: os.stat_result | None) -> None:
    """Set a modification time that differs from the old one's in whole seconds.

    A compiled `.pyc` is taken for current when size and whole second agree.
    """
    now = time.time_ns()
    if before is not None and before.st_mtime_ns // 10**9 == now // 10**9:
        now += 10**9
    os.utime(temporary, ns=(now, now))


def _restore(done: list[_Write]) -> list[_Write]:
    lost = []
    for write in reversed(done):
        try:
            if write.backup is None:
                write.target.unlink(missing_ok=True)
            else:
                write.backup.replace(write.target)
        except OSError:
            lost.append(write)
    return lost


def _clean(writes: list[_Write], made: list[Path]) -> None:
    for write in writes:
        for leftover in (write.temporary, write.backup):
            with contextlib.suppress(OSError):
                if leftover is not None:
                    leftover.unlink(missing_ok=True)
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
    # What the caller ignores, as `nohup` does, stays ignored.
    heeded = [n for n in _SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    old = {number: signal.signal(number, lambda n, _: seen.append(n)) for number in heeded}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def umask() -> int:
    """Return the mask of the process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
