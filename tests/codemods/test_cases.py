"""Check each seam by its files: what it edits, what it leaves alone and what it refuses."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import libcst as cst
import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.model import SETTLED, Outcome
from sgl_npu_patch.engine.plan import make_plan, prove
from tests.codemods.case import (
    CASES,
    FOLDER,
    GOLDENS,
    STATUSES,
    UNDONE,
    VENDORED,
    golden,
    read,
    statuses,
    unchanged,
)
from tests.codemods.difference import Sources
from tests.helpers import ROOT, MemoryTree, judge, shape

REFUSED = [path for path in CASES if path.parent.name == "refused"]
UNDOES = re.compile(
    r"as SGLang's releases do|^(restore|keep|take|leave|draw|define it|set it|assign \"pytorch\""
    r"|give it the parameter|move it|declare|check one|make all|import|write the test)"
)
"""What the line `next` begins with where the fork's own difference is to be taken back."""
UNTRIED = {"run sgl-npu-patch with a newer Python"}


def _id(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def test_statuses_of_the_shapes() -> None:
    assert statuses() == STATUSES.read_text("utf-8")


@pytest.mark.parametrize(("seam", "name"), GOLDENS)
def test_golden_files(seam: str, name: str) -> None:
    before = shape(name)
    outcome, after = judge(seam, before)
    changed = {path: data for path, data in after.items() if data != before.get(path)}
    assert {path: changed[path] for path in changed if path not in VENDORED} == golden(seam, name)
    check_edited(seam, before, after, outcome)


@pytest.mark.parametrize("path", CASES, ids=_id)
def test_case(path: Path) -> None:
    case = read(path)
    before = case.files
    outcome, after = judge(case.seam, before)
    assert case.folder == path.parent.name
    assert str(case.refreshed(outcome, after)) == path.read_text("utf-8"), (
        "see tests/codemods/refresh.py"
    )
    if outcome.status == "pending":
        check_edited(case.seam, before, after, outcome)
        return
    assert after == before
    assert outcome.sites or outcome.evidence is not None
    for site in outcome.sites:
        data = before[site.path.relative_to(ROOT).as_posix()]
        assert site.line <= len(data.splitlines()) + 1
    if outcome.evidence is not None:
        evidence = outcome.evidence
        assert evidence.sought
        assert evidence.expected
        assert evidence.found
        assert evidence.found != evidence.expected
        assert evidence.action
        assert all(site.symbol for site in evidence.where)
        lines = case.outcome.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("path", REFUSED, ids=_id)
def test_the_conflict_goes_when_its_advice_is_followed(path: Path) -> None:
    case = read(path)
    skipped = re.search(r"--skip (\w+)", case.advice)
    if skipped:
        tree = MemoryTree({ROOT / name: data for name, data in case.files.items()})
        rest = [seam for seam in SERIES if seam != skipped[1]]
        assert not make_plan(tree, SERIES, rest).conflicts
    if case.mended is None:
        assert skipped or case.advice in UNTRIED
        return
    if case.mended == UNDONE:
        assert UNDOES.search(case.advice), case.advice
        assert unchanged(case.seam, case.shape) != "conflict"
        return
    mended = case.mend()
    assert mended != case.files
    check_compiles(mended)
    outcome, after = judge(case.seam, mended)
    assert outcome.status != "conflict", outcome
    if outcome.status == "pending":
        check_edited(case.seam, mended, after, outcome)


@pytest.mark.parametrize("seam", SERIES)
def test_every_seam_has_cases_of_each_kind(seam: str) -> None:
    kinds = {path.parent.name for path in CASES if path.parts[-3] == seam}
    assert kinds >= {"edited", "refused"}


@pytest.mark.parametrize("name", sorted({name for _, name in GOLDENS}))
def test_a_patched_tree_is_ours(name: str) -> None:
    tree = MemoryTree({ROOT / path: data for path, data in shape(name).items()})
    plan = make_plan(tree, SERIES)
    prove(plan)
    after = shape(name) | {
        change.path.relative_to(ROOT).as_posix(): change.after for change in plan.changes.changes
    }
    for outcome in plan.outcomes:
        settled = "already" if outcome.status == "pending" else outcome.status
        again, same = judge(outcome.seam, after)
        assert same == after
        assert again.status in (settled, "already", "not-needed"), again


def check_edited(seam: str, before: Sources, after: Sources, outcome: Outcome) -> None:
    """Insist on an edit that compiles, has a site at each difference and leaves nothing to do."""
    assert outcome.status == "pending", outcome
    for name, data in after.items():
        if data != before.get(name):
            assert name in before or name in VENDORED
            check_sites(name, before.get(name), data, outcome)
    check_compiles(after)
    again, same = judge(seam, after)
    assert again.status in SETTLED, again
    assert same == after


def check_compiles(files: Sources) -> None:
    """Insist that every file is Python, in syntax newer than this interpreter's if need be."""
    for name, data in files.items():
        try:
            compile(data, name, "exec", dont_inherit=True)
        except SyntaxError:
            cst.parse_module(data)


def check_sites(name: str, before: bytes | None, after: bytes, outcome: Outcome) -> None:
    """Insist that every difference has a site in the file as read, and every site a difference."""
    lines = {site.line for site in outcome.sites if site.path == ROOT / name}
    if before is None:
        assert lines == {0}
        return
    old, new = (re.split(rb"\r\n|\r|\n", data) for data in (before, after))
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    hunks = [range(a, max(b, a + 1)) for tag, a, b, _, _ in opcodes if tag != "equal"]
    # An insertion of lines like those around it can be told in more than one way.
    near = [range(hunk.start - 1, hunk.stop + 2) for hunk in hunks]
    assert all(any(line in hunk for line in lines) for hunk in near), (lines, near)
    assert all(any(line in hunk for hunk in near) for line in lines), (lines, near)
