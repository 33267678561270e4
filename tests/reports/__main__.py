"""Write the pictures of docs/reports.md: ``python -m tests.reports``; needs chromium."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.reports.chromium import Browser, browser

DOCS = Path(__file__).parents[2] / "docs"
RELEASES = ">=0.5.8,<0.5.16"
SIZE = {"width": 1300, "height": 500}


def main() -> None:
    """Judge some releases, open the page and take a picture of it, and of a cell that is open."""
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "matrix.html")
        command = ["matrix", "--releases", RELEASES, "--report", f"html={page}"]
        subprocess.run([sys.executable, "-m", "sgl_npu_patch", *command], check=True)
        with browser(Path(scratch, "profile")) as shown:
            shown.call(
                "Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, mobile=False, **SIZE
            )
            shown.open(page)
            take(shown, "matrix.png")
            shown.value("""
                [...document.querySelectorAll("tbody tr")].find(
                  row => row.querySelector("th").innerText == "0.5.11"
                ).querySelectorAll("td")[3].querySelector("button").click()
            """)
            take(shown, "matrix-cell.png")


def take(shown: Browser, name: str) -> None:
    """Write what is shown to a file."""
    data = base64.b64decode(shown.call("Page.captureScreenshot", format="png")["data"])
    (DOCS / name).write_bytes(data)


if __name__ == "__main__":
    main()
