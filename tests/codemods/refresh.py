"""Rewrite the golden files and the outcomes in the case files: `python -m tests.codemods.refresh`.

What is changed in the trees of the cases, and what mends them, is written by hand.
"""

from __future__ import annotations

import shutil

from sgl_npu_patch.codemods import SERIES
from tests.codemods.case import CASES, FOLDER, STATUSES, VENDORED, read, statuses
from tests.helpers import SHAPES, judge, shape


def refresh_goldens() -> None:
    """Write what each seam leaves in the files of each shape that it changes."""
    for seam in SERIES:
        for name in SHAPES:
            shutil.rmtree(FOLDER / seam / name, ignore_errors=True)
            before = shape(name)
            _, after = judge(seam, before)
            for path, data in after.items():
                if data != before.get(path) and path not in VENDORED:
                    target = FOLDER / seam / name / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)


def refresh_cases() -> None:
    """Write the outcome of each case, and file it by that."""
    for path in CASES:
        case = read(path)
        case = case.refreshed(*judge(case.seam, case.files))
        target = path.parents[1] / case.folder / path.name
        target.parent.mkdir(exist_ok=True)
        path.rename(target).write_text(str(case), "utf-8", newline="\n")


if __name__ == "__main__":
    STATUSES.write_text(statuses(), "utf-8")
    refresh_goldens()
    refresh_cases()
