"""Judge trees in parallel processes, so that none that breaks or hangs up stops the others."""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from sgl_npu_patch.engine.errors import Interrupted
from sgl_npu_patch.matrix.judge import BUG, Judge, Judged, Options, failed, load_ahead
from sgl_npu_patch.matrix.selection import Wanted

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_SECONDS = 10
"""How long a process may take to end when it is told to."""

_AT_ONCE = 500
"""How many trees of its share to tell a new process, which looks them up at once."""

Done = Callable[[int, Judged], None]


def judge_all(judge: Judge, wanted: Sequence[Wanted], jobs: int, done: Done) -> None:
    """Judge trees and tell what was found with each one's place; one process uses none beside it.

    Neighbours are given to the same process as far as possible: they share most of their files.
    """
    if jobs == 1 or len(wanted) == 1:
        for place, each in enumerate(wanted):
            done(place, _judged(judge, each))
        return
    from multiprocessing.connection import wait

    shares = [deque(share) for share in _shares(len(wanted), min(jobs, len(wanted)))]
    workers = [_Worker(judge.options, share) for share in shares]
    try:
        for worker in workers:
            worker.give(wanted)
        while busy := {worker.pipe: worker for worker in workers if worker.given is not None}:
            for pipe in wait([*busy]):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.given is not None
                done(worker.given, worker.take(wanted[worker.given]))
                if not worker.share:
                    _help(worker, workers)
                worker.give(wanted)
    finally:
        for worker in workers:
            worker.tell_to_end()
        for worker in workers:
            worker.end()


def _shares(count: int, jobs: int) -> Iterator[range]:
    for number in range(jobs):
        yield range(count * number // jobs, count * (number + 1) // jobs)


def _help(idle: _Worker, workers: Sequence[_Worker]) -> None:
    """Take over the second half of the longest share."""
    most = max(workers, key=lambda worker: len(worker.share))
    for _ in range((len(most.share) + 1) // 2):
        idle.share.appendleft(most.share.pop())


class _Worker:
    """Hold one process, which is started when it is first needed and again after it died."""

    def __init__(self, options: Options, share: deque[int]) -> None:
        self.share = share
        self.given: int | None = None
        self._options = options
        self._process: BaseProcess | None = None

    def give(self, wanted: Sequence[Wanted]) -> None:
        """Let the process judge the next tree of its share, if there is one."""
        self.given = self.share.popleft() if self.share else None
        if self.given is None:
            return
        if self._process is None:
            import multiprocessing

            # Not forked: nothing of ours that is open or half done is to be in it.
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            soon = [wanted[place] for place in (self.given, *islice(self.share, _AT_ONCE))]
            self._process = context.Process(
                target=_serve, args=(other, self._options, soon), daemon=True
            )
            self._process.start()
            other.close()
        with suppress(OSError):
            self.pipe.send(wanted[self.given])

    def take(self, wanted: Wanted) -> Judged:
        """Receive what was found, or say that the process died over a tree."""
        try:
            judged: Judged = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            why = "the process that judged it ended before it was done"
            return Judged(failed(wanted, why))
        return judged

    def tell_to_end(self) -> None:
        """Ask the process to end, whatever it does."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self.pipe.close()
            self._process.join(_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None


def _serve(pipe: Connection, options: Options, soon: Sequence[Wanted]) -> None:
    """Judge what the pipe names, most likely ``soon``, until it is closed."""
    gc.disable()
    # A terminal's interrupt reaches every process; the one that started this one tells it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupted)
    load_ahead()
    with suppress(Interrupted, EOFError, OSError), Judge(options) as judge:
        judge.prepare(soon)
        while True:
            pipe.send(_judged(judge, pipe.recv()))


def _interrupted(number: int, frame: object) -> None:
    raise Interrupted(number)


def _judged(judge: Judge, wanted: Wanted) -> Judged:
    try:
        return judge.judge(wanted)
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception:  # noqa: BLE001  # the others are judged all the same
        traceback.print_exc(file=sys.stderr)
        return Judged(failed(wanted, BUG))
