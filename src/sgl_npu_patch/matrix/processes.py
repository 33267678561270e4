"""Evaluate trees in parallel processes, so that none that breaks or hangs stops the others."""

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
from sgl_npu_patch.matrix.content import Options
from sgl_npu_patch.matrix.evaluate import BUG, Evaluation, Evaluator, failed, load_ahead
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.trees import TreeRef

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_SECONDS = 10
"""How long a process may take to end when it is told to."""

_AT_ONCE = 500
"""How many trees of its share to tell a new process, which looks them up at once."""

Done = Callable[[int, Evaluation], None]


def evaluate_each(evaluator: Evaluator, refs: Sequence[TreeRef], jobs: int, done: Done) -> None:
    """Evaluate trees, in this process if there is only one job.

    Trees that follow each other share most of their files, and are given to the same process as far
    as possible.

    Args:
        done: is given each tree's place and what was found out about it.
    """
    if jobs == 1 or len(refs) == 1:
        for place, ref in enumerate(refs):
            done(place, _evaluate(evaluator, ref))
        return
    from multiprocessing.connection import wait

    shares = [deque(share) for share in _shares(len(refs), min(jobs, len(refs)))]
    workers = [_Worker(evaluator.options, share) for share in shares]
    try:
        for worker in workers:
            worker.give(refs)
        while busy := {worker.pipe: worker for worker in workers if worker.given is not None}:
            for pipe in wait([*busy]):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.given is not None
                done(worker.given, worker.take(refs[worker.given]))
                if not worker.share:
                    _help(worker, workers)
                worker.give(refs)
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
    """A process, which is started when it is first needed and again after it died."""

    def __init__(self, options: Options, share: deque[int]) -> None:
        self.share = share
        self.given: int | None = None
        self._options = options
        self._process: BaseProcess | None = None

    def give(self, refs: Sequence[TreeRef]) -> None:
        """Send the process the next tree of its share, if there is one."""
        self.given = self.share.popleft() if self.share else None
        if self.given is None:
            return
        if self._process is None:
            import multiprocessing

            # Not forked: nothing of ours that is open or half done is to be in it.
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            soon = [refs[place] for place in (self.given, *islice(self.share, _AT_ONCE))]
            self._process = context.Process(
                target=_serve, args=(other, self._options, soon), daemon=True
            )
            self._process.start()
            other.close()
        with suppress(OSError):
            self.pipe.send(refs[self.given])

    def take(self, ref: TreeRef) -> Evaluation:
        """Receive what was found, or that the process died over the tree."""
        try:
            found: Evaluation = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            why = "the process that evaluated it ended before it was done"
            return Evaluation(failed(ref, why))
        return found

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


def _serve(pipe: Connection, options: Options, soon: Sequence[TreeRef]) -> None:
    """Evaluate what the pipe names, most likely ``soon``, until it is closed."""
    gc.disable()
    # A terminal's interrupt reaches every process; the one that started this one tells it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupted)
    load_ahead()
    with suppress(Interrupted, EOFError, OSError), Repositories() as repositories:
        evaluator = Evaluator(options, repositories)
        evaluator.prepare(soon)
        while True:
            pipe.send(_evaluate(evaluator, pipe.recv()))


def _interrupted(number: int, frame: object) -> None:
    raise Interrupted(number)


def _evaluate(evaluator: Evaluator, ref: TreeRef) -> Evaluation:
    try:
        return evaluator.evaluate(ref)
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception:  # noqa: BLE001  # the others are evaluated all the same
        traceback.print_exc(file=sys.stderr)
        return Evaluation(failed(ref, BUG))
