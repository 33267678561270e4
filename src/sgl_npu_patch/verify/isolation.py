"""Run the checks that execute a tree in processes of their own.

Each has a time limit, an empty throw-away home as its only place to write to, and an environment
with nothing of the user's in it but what finds Python and its packages.
"""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sgl_npu_patch.verify.results import Kind, Result

SECONDS = 300
"""How long a group of checks may take; a whole run takes less than a minute."""

_KEPT = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "LANG",
    "LC_ALL",
    "SGL_NPU_PATCH_CACHE",
)


def run(
    groups: Sequence[str], request: Mapping[str, Any], *, seconds: float = SECONDS
) -> list[Result]:
    """Run each group of checks in a process of its own, as many at once as there are processors.

    Args:
        request: what `behaviour.Subject` holds, in JSON's types, and ``only``, ids to run alone.
    """
    with ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 1)) as pool:
        found = pool.map(lambda group: list(_group(group, request, seconds)), groups)
        return [result for results in found for result in results]


def _group(group: str, request: Mapping[str, Any], seconds: float) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as scratch:
        asked = {**request, "groups": [group], "scratch": scratch}
        ended, output, errors = _process(json.dumps(asked), scratch, seconds)
    yield from _results(group, output, ended, errors)


def _process(asked: str, scratch: str, seconds: float) -> tuple[str, str, str]:
    """Give how the process ended, where it did not end well, and what it wrote."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # Packages in the user's own folder are found without the user's home.
    environment["PYTHONUSERBASE"] = site.getuserbase()
    environment |= dict.fromkeys(("HOME", "TMPDIR", "USERPROFILE", "XDG_CACHE_HOME"), scratch)
    command = [sys.executable, "-B", "-m", "sgl_npu_patch.verify.behaviour"]
    process = subprocess.Popen(
        command,
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
    try:
        output, errors = process.communicate(asked, timeout=seconds)
    except BaseException as error:
        _kill(process)
        output, errors = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"it was not done after {seconds:.0f} s", output, errors
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return f"the process died of {name}", output, errors
    return (
        (f"the process ended with {process.returncode}" if process.returncode else ""),
        output,
        errors,
    )


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process with whatever it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    else:
        process.kill()


def _results(group: str, output: str, ended: str, errors: str) -> Iterator[Result]:
    begun: dict[str, Any] | None = None
    for line in output.splitlines():
        event = json.loads(line)
        if "begins" in event:
            begun = event
        elif begun is not None:
            yield _result(group, begun, event)
            begun = None
    if ended:
        about = begun or {
            "begins": f"{group}.runs",
            "seam": "",
            "meaning": "The checks run.",
            "gap": "",
        }
        last = errors.strip().splitlines()[-1:] or [""]
        told = {"verdict": "fail", "message": f"{ended} {last[0]}".strip(), "code": errors[-2000:]}
        yield _result(group, about, told)


def _result(group: str, begun: Mapping[str, Any], event: Mapping[str, Any]) -> Result:
    kind: Kind = "layers" if group == "layers" else "behaviour"
    return Result(
        id=begun["begins"],
        seam=begun["seam"],
        kind=kind,
        meaning=begun["meaning"],
        gap=begun["gap"],
        **event,
    )
