"""What a cell of the page shows of a release's diff is what its seam does."""

from __future__ import annotations

import json
import re

import pytest

from sgl_npu_patch.reports.formats import Target, render
from sgl_npu_patch.reports.hunks import seam_diff
from sgl_npu_patch.reports.matrix import read_matrix
from tests.reports.documents import matrix
from tests.upstream.program import program
from tests.upstream.releases import release_tree


@pytest.mark.parametrize("version", ["0.5.3rc2", "0.5.12.post1", "0.5.23"])
def test_every_hunk_belongs_to_a_seam_that_is_applied(version: str) -> None:
    done = program("apply", "--check", "--diff", release_tree(version), "--format", "json")
    document = matrix({"name": version, **json.loads(done.stdout)})
    (tree,) = read_matrix(document).trees
    # The list of an installed package's files belongs to no seam.
    source = re.sub(r"diff --git \S+/RECORD .*?(?=diff --git |\Z)", "", tree.diff, flags=re.DOTALL)
    applied = [outcome for outcome in tree.outcomes if outcome.status == "pending"]
    parts = [seam_diff(tree.diff, outcome.sites) for outcome in applied]
    assert all(parts)
    assert {hunk for part in parts for hunk in hunks(part)} == hunks(source)
    shown = render("html", "matrix", document, Target())
    assert shown.count('<details class="diff"') == len(parts)


def hunks(diff: str) -> set[tuple[str, str]]:
    """Cut a diff into hunks, each with the head of its file."""
    found = set()
    for file in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        head, *parts = re.split(r"^(?=@@ )", file, flags=re.MULTILINE)
        found |= {(head, part) for part in parts}
    return found
