from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.reports.hunks import seam_diff

HEAD_A = "diff --git a/x/s/a.py b/x/s/a.py\n--- a/x/s/a.py\n+++ b/x/s/a.py\n"
FIRST = "@@ -10,7 +10,8 @@\n one\n+two\n"
SECOND = "@@ -40 +41 @@\n-diff --git a/s/a.py b/s/a.py\n+@@ -1 +1 @@\n"
HEAD_B = 'diff --git "a/\\346/s/b.py" "b/\\346/s/b.py"\n--- /dev/null\n+++ "b/\\346/s/b.py"\n'
ADDED = "@@ -0,0 +1,2 @@\n+one\n+two\n"
DIFF = HEAD_A + FIRST + SECOND + HEAD_B + ADDED


def site(path: str, line: int) -> Site:
    return Site(PurePosixPath(path), line, "")


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([site("s/a.py", 10)], HEAD_A + FIRST),
        ([site("s/a.py", 17)], HEAD_A + FIRST),
        ([site("s/a.py", 9)], ""),
        ([site("s/a.py", 18)], ""),
        ([site("s/a.py", 40)], HEAD_A + SECOND),
        ([site("s/a.py", 0)], HEAD_A + FIRST + SECOND),
        ([site("s/b.py", 0)], HEAD_B + ADDED),
        ([site("s/b.py", 0), site("s/a.py", 12)], HEAD_A + FIRST + HEAD_B + ADDED),
        ([site("a.py", 0)], HEAD_A + FIRST + SECOND),
        ([site("s/ca.py", 10)], ""),
        ([], ""),
    ],
)
def test_hunks_of_a_seam(sites: list[Site], expected: str) -> None:
    assert seam_diff(DIFF, sites) == expected


def test_no_diff_at_all() -> None:
    assert seam_diff("", [site("s/a.py", 1)]) == ""
