"""Read objects by id through one git process, which runs ahead of its reader."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees import git

_QUESTION = 65
"""Bytes of the longest id and its line ending."""
_PIPE = 4096
"""Bytes that a pipe holds at least."""
_AHEAD = 1 << 20
"""Bytes that git may write before they are taken, where the system lets a pipe hold that many."""
_DELTAS = 8 << 20
"""Bytes that git may keep to make contents from; more makes it slower."""


class Objects:
    """Read objects from one `git cat-file --batch`, started when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._window = 0

    def get(self, ids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the kind and bytes of each object, in the order asked; all must be taken.

        Raises:
            Refused: one is missing, or git fails.
        """
        self._running()
        # Two such questions must fit into the pipe, or both would wait for the other to read.
        parts = [ids[start : start + self._window] for start in range(0, len(ids), self._window)]
        for place, part in enumerate(parts):
            # One question ahead: git goes on while the answers to this one are looked at.
            for question in parts[place + 1 : place + 2] if place else parts[:2]:
                self._ask(question)
            for name in part:
                yield self._answer(name)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._said):
                # What a process that is gone was not told is of no interest.
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
            self._process = subprocess.Popen(
                [*git.COMMAND, "-c", f"core.deltaBaseCacheLimit={_DELTAS}", "cat-file", "--batch"],
                cwd=self._path,
                env=git.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=_AHEAD,
            )
            self._window = _widened(self._process.stdin) // (2 * _QUESTION)
            _widened(self._process.stdout)
        return self._process

    def _ask(self, names: Sequence[str]) -> None:
        to = self._running().stdin
        assert to
        try:
            to.write("".join(f"{name}\n" for name in names).encode())
            to.flush()
        except OSError:
            raise self._failed(names[0]) from None

    def _answer(self, name: str) -> tuple[str, bytes]:
        answers = self._running().stdout
        assert answers
        head = answers.readline().split()
        if len(head) != 3:
            raise self._failed(name)
        size = int(head[2])
        data = answers.read(size)
        if len(data) != size or answers.read(1) != b"\n":
            raise self._failed(name)
        return head[1].decode("ascii"), data

    def _failed(self, name: str) -> Refused:
        assert self._said
        # The next question starts anew, so that no answer that is left over is taken for its own.
        self._running().kill()
        self._said.seek(0)
        said = git.first_line(self._said.read())
        self.close()
        return Refused(
            f"{self._path}: object {name} cannot be read ({said or 'it is missing'}): the "
            "repository is damaged, or a partial clone that lacks folders or knows no origin"
        )


def _widened(pipe: IO[bytes] | None) -> int:
    """Enlarge a pipe where the system can, and return how many bytes it holds."""
    assert pipe
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _AHEAD)
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    return _PIPE
