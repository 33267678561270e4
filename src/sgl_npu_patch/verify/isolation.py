"""Run the checks that execute a tree in processes of their own.

Each has a time limit, an empty throw-away home as its only place to write to, and an environment
with nothing of the user's in it but what finds Python and its packages.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

from sgl_npu_patch.engine.model import CheckKind, Result

SECONDS = 300
"""How long a group of checks may take; a whole run takes less than a minute."""

BEHAVIOUR = "sgl_npu_patch.verify.behaviour"

GRACE = 5
"""How many seconds more a process has to end itself before it is ended."""

_KINDS: Mapping[str, CheckKind] = {"layers": "layers", "server": "server"}
"""What the checks of a group are, unless they are of behaviour."""

_KEPT = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "LANG",
    "LC_ALL",
)


def run(
    groups: Sequence[str],
    request: Mapping[str, Any],
    *,
    seconds: float = SECONDS,
    program: str = BEHAVIOUR,
    variables: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run each group of checks in a process of its own, as many at once as there are processors.

    Every check that a group declares has a result, however its process ends. When this is
    interrupted, the processes are ended and their folders removed first.

    Args:
        request: what `behaviour.Subject` holds, in JSON's types, and ``only``, ids and seams to run
            alone.
        program: the module that runs a group, see `protocol`.
        variables: what the environment has beside those that find Python and its packages.
    """
    running = _Running(program, variables or {})
    with ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 1)) as pool:
        futures = [pool.submit(_group, group, request, seconds, running) for group in groups]
        try:
            return [result for future in futures for result in future.result()]
        except BaseException:
            running.end()
            raise


class _Running:
    """Hold the processes that run, so that all of them can be ended."""

    def __init__(self, program: str, variables: Mapping[str, str]) -> None:
        self.program = program
        self.variables = variables
        self._lock = Lock()
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = False

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str] | None:
        """Start a process, or none after `end`."""
        with self._lock:
            if self._ended:
                return None
            process = subprocess.Popen(command, **options)
            self._processes.append(process)
            return process

    def end(self) -> None:
        """End every process, and let none start from now on."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                if process.poll() is None:
                    _kill(process)


def _group(
    group: str, request: Mapping[str, Any], seconds: float, running: _Running
) -> list[Result]:
    """Run a group, and once more those checks that need further modules of the tree."""
    found = _once(group, request, seconds, running)
    needed = sorted({module for _, modules in found for module in modules})
    if not needed:
        return [result for result, _ in found]
    again = {**request, "only": [result.id for result, modules in found if modules]}
    second = _once(group, {**again, "real": needed}, seconds, running)
    better = {result.id: result for result, _ in second if not result.lost}
    return [better.get(result.id, result) for result, _ in found]


def _once(
    group: str, request: Mapping[str, Any], seconds: float, running: _Running
) -> list[tuple[Result, list[str]]]:
    """Run a group in one process; return each result with the modules that its check lacked."""
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(
        prefix="sgl-npu-patch-", ignore_cleanup_errors=True
    ) as scratch:
        asked = {
            **request, "groups": [group], "scratch": scratch, "seconds": seconds, "word": word
        }  # fmt: skip
        ended, output, errors = _process(json.dumps(asked), scratch, seconds, running)
    lines = [line.removeprefix(word) for line in output.splitlines() if line.startswith(word)]
    return list(_results(group, [json.loads(line) for line in lines], ended, errors))


def _process(asked: str, scratch: str, seconds: float, running: _Running) -> tuple[str, str, str]:
    """Give how the process ended, where it did not end well, and what it wrote."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # Packages in the user's own folder are found without the user's home.
    environment["PYTHONUSERBASE"] = site.getuserbase()
    environment |= dict.fromkeys(("HOME", "TMPDIR", "USERPROFILE", "XDG_CACHE_HOME"), scratch)
    environment |= running.variables
    process = running.start(
        [sys.executable, "-B", "-m", running.program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=scratch,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    if process is None:
        return "it was interrupted", "", ""
    late = f"it was not done after {seconds:.0f} s"
    try:
        # The process ends itself in time, unless the tree's code holds it up.
        output, errors = process.communicate(asked, timeout=seconds + GRACE)
    except subprocess.TimeoutExpired:
        _kill(process)
        return late, *process.communicate()
    if process.returncode == 1 and "\nTimeout (" in f"\n{errors}":
        return late, output, errors[errors.rindex("Timeout (") :]
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return f"the process died of {name}", output, errors
    ended = f"the process ended with {process.returncode}"
    return "" if process.returncode == 0 else ended, output, errors


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process with whatever it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _results(
    group: str, events: list[dict[str, Any]], ended: str, errors: str
) -> Iterator[tuple[Result, list[str]]]:
    """Make a result of each declared check; the one that ran last says how the process ended."""
    declared: list[dict[str, str]] = []
    verdicts: dict[str, dict[str, Any]] = {}
    begun = ""
    for event in events:
        if "declared" in event:
            declared = event["declared"]
        elif "begins" in event:
            begun = event["begins"]
        else:
            verdicts[begun], begun = event, ""
    if not declared and ended:
        declared = [{"id": f"{group}.runs", "seam": "", "meaning": "The checks run.", "gap": ""}]
        begun = declared[0]["id"]
    last = errors.strip().splitlines()[-1:] or [""]
    ended = ended or "the process ended before it"
    for about in declared:
        running = about["id"] == begun
        message = f"{ended} {last[0]}".strip() if running else f"not reached: {ended}"
        lost = {"verdict": "fail", "message": message, "code": errors[-2000:], "lost": True}
        event = verdicts.get(about["id"], lost)
        modules = event.pop("modules", [])
        yield _result(group, about, event), modules


def _result(group: str, about: Mapping[str, Any], event: Mapping[str, Any]) -> Result:
    return Result(**about, kind=_KINDS.get(group, "behaviour"), **event)
