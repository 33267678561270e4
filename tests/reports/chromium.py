"""Drive a headless Chromium over its debugging pipe, as far as the tests of the page need."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
_PATIENCE = 60
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


class Browser:
    """Hold one page of a running browser.

    Attributes:
        events: what the browser told of by itself, as pairs of method and parameters.
    """

    def __init__(self, read: int, write: int) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and give its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Load a file and wait until it stands."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._receive()
        self.call("Page.bringToFront")

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript, for which the page's policy does not matter."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, "the browser says nothing"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self.events.append((answer["method"], answer["params"]))
        return answer


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start the browser and end it; the caller has seen that there is one."""
    assert PROGRAM is not None
    its_read, write = map(_out_of_the_way, os.pipe())
    read, its_write = map(_out_of_the_way, os.pipe())
    command = [
        PROGRAM,
        "--headless",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        # Its sandbox does not start as root, as which continuous integration runs.
        *(["--no-sandbox"] if os.getuid() == 0 else []),
    ]
    # The browser reads from descriptor 3 and writes to 4.
    redirected = f'exec "$@" 3<&{its_read} 4>&{its_write}'
    with subprocess.Popen(
        ["bash", "-c", redirected, "bash", *command],
        pass_fds=(its_read, its_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(its_read)
        os.close(its_write)
        try:
            yield Browser(read, write)
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _out_of_the_way(descriptor: int) -> int:
    """Move a descriptor above those that the browser's are put in the place of."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
