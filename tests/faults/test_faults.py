"""Judge the named faults and a seeded sample of the mutants; the command judges all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.faults.equivalent import EQUIVALENT
from tests.faults.mutants import mutants, untouched
from tests.faults.named import FAULTS, NEWEST, WITHHELD, WITHOUT_GATE
from tests.refactor.project import SHAPES
from tests.upstream.program import ROOT, SEAMS
from tests.upstream.releases import release_tree

SAMPLED = {NEWEST: (12, 4), WITHOUT_GATE: (4, 0)}
"""How many mutants are judged of each release, and of its vendored modules."""


def _judged(*arguments: str) -> str:
    """Run the command in a process of its own, of which each fault is judged in a fork."""
    command = [sys.executable, "-m", "tests.faults", "--quick", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stderr


@pytest.mark.parametrize("release", [NEWEST, WITHHELD, WITHOUT_GATE])
def test_named_faults_are_found_under_their_seam(release: str) -> None:
    told = _judged("--release", release, "--only", "named")
    for name, fault in FAULTS.items():
        assert fault.release != release or f"{release}: named: {name}: " in told


@pytest.mark.parametrize("release", SAMPLED)
def test_mutants_are_found(release: str) -> None:
    own, vendored = SAMPLED[release]
    sample = ["--sample", str(own), "--vendored", str(vendored)]
    told = _judged("--release", release, "--only", "mutants", *sample)
    assert len(told.splitlines()) >= own + vendored


def test_a_refactored_tree_is_no_false_alarm() -> None:
    _judged("--release", WITHOUT_GATE, "--only", "refactorings")


def test_every_token_is_mutated_and_every_excuse_is_for_a_mutant() -> None:
    unexcused = {*EQUIVALENT}
    for version in (NEWEST, WITHOUT_GATE):
        plan = make_plan(open_directory(release_tree(version), PROJECT), SERIES)
        for change in plan.changes.changes:
            if change.before is None:
                continue
            before, after = change.before.decode(), change.after.decode()
            made = mutants(change.path, before, after)
            assert not untouched(change.path, before, after, made)
            unexcused -= {mutant.key for mutant in made}
    assert not unexcused


def test_named_faults_concern_every_seam_and_shapes_only() -> None:
    assert len(FAULTS) >= 40
    assert {fault.seam for fault in FAULTS.values()} == {*SEAMS}
    assert {fault.release for fault in FAULTS.values()} <= {*SHAPES}
    assert len({(fault.release, fault.edits) for fault in FAULTS.values()}) == len(FAULTS)
