"""Judge the named faults and a seeded sample of the mutants; the command judges all of them.

In a process of its own, since each fault is judged in a fork of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.faults.named import FAULTS, NEWEST, WITHHELD, WITHOUT_GATE
from tests.refactor.project import SHAPES
from tests.upstream.program import ROOT, SEAMS

SAMPLED = {NEWEST: 25, WITHHELD: 0, WITHOUT_GATE: 5}


def _judged(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.faults", "--quick", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stderr


@pytest.mark.parametrize("release", SAMPLED)
def test_faults_are_found_under_their_seam(release: str) -> None:
    """One process for both kinds, since warming it up takes as long as judging many faults."""
    sample, vendored = str(SAMPLED[release]), "10" if release == NEWEST else "0"
    told = _judged(
        "--release",
        release,
        "--sample",
        sample,
        "--vendored",
        vendored,
        "--only",
        "named",
        "--only",
        "mutants",
    )
    for name, fault in FAULTS.items():
        assert (fault.release != release) or f"{release}: {name}: " in told


@pytest.mark.parametrize("release", [NEWEST, WITHOUT_GATE])
def test_a_refactored_tree_is_no_false_alarm(release: str) -> None:
    _judged("--release", release, "--only", "refactorings")


def test_named_faults_concern_every_seam_and_shape() -> None:
    assert len(FAULTS) >= 40
    assert {fault.seam for fault in FAULTS.values()} == {*SEAMS}
    assert {fault.release for fault in FAULTS.values()} <= {*SHAPES}
    repeated = Counter((fault.release, fault.edits) for fault in FAULTS.values()).most_common(1)
    assert repeated[0][1] == 1
