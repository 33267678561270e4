"""Write docs/evidence/faults.md: `python -m tests.faults`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.named import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "faults.md"

HEAD = """\
# Faults that `verify` finds

A check is worth what it finds. Each of these is what a wrong patch, a merge or a well-meant edit
would bring in: put into a patched release, it makes one of the named checks of `verify --base`
fail, and no check of a seam that it does not concern. `make test-all` puts in every one, `make
test` some of each seam. Written by `python -m tests.faults`.

| fault | release | seam | found by |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = (
        f"| {name} | {fault.release} | {fault.seam} | "
        f"{', '.join(f'`{check}`' for check in sorted(fault.ids))} |\n"
        for name, fault in FAULTS.items()
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
