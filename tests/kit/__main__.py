"""Write what the pages show of doctor and the kit: ``python -m tests.kit``."""

from __future__ import annotations

from tests.kit.pages import PAGES, rerun

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rerun(page.read_text("utf-8")), encoding="utf-8", newline="\n")
