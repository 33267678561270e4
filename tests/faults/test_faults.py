"""Put each named fault into a patched release, and insist that `verify` finds it."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.overlay import Cache, Overlay
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify import off_npu, static
from sgl_npu_patch.verify.behaviour import CHECKS, GROUPS, Subject, declared
from sgl_npu_patch.verify.behaviour.__main__ import verdict
from sgl_npu_patch.verify.static.judged import Judged
from sgl_npu_patch.verify.static.judged import judge as read
from tests.faults.__main__ import PAGE, page
from tests.faults.fault import NEWEST, WITHHELD, WITHOUT_GATE, Fault
from tests.faults.named import FAULTS
from tests.helpers import ROOT
from tests.upstream.behaviour import one_thread, subject_of
from tests.upstream.edited import Files, judge, lay_out, result, sources
from tests.upstream.program import SEAMS
from tests.upstream.releases import release_tree
from tests.upstream.test_statuses import expected_statuses
from tests.upstream.trees import sampled

OFTEN = (
    "positions of another request",
    "positions not handed on",
    "the rebinding not undone",
    "addmm unregistered",
    "the guards called off the NPU",
    "ascend missing from the list",
    "ascend in the wrong list",
    "the sampling backend forced as before",
    "CUDA's dispatch key on an NPU",
    "the claim left",
    "the newest token not counted",
    "noise by rank",
)
"""At least one of each seam and kind of check."""


_CACHE = Cache()


@cache
def unpatched(release: str) -> Judged:
    return read_tree(release_tree(release))


def read_tree(tree: Path) -> Judged:
    """Read a tree; most of its files are as in the last one."""
    return read(Overlay(open_directory(tree, PROJECT), _CACHE.for_another_tree()))


@cache
def patched(release: str) -> Files:
    files = sources(release)
    return result(files, judge(files))


def failures(fault: Fault) -> set[str]:
    """Return the checks that fail, of those that execute a tree only the fault's own."""
    whole = patched(fault.release)
    texts = {PurePosixPath(ROOT, name): data.decode() for name, data in whole.items()}
    edited = {path.relative_to(ROOT).as_posix(): d for path, d in fault.files(texts).items()}
    files = {**whole, **edited}
    tree = lay_out(fault.release, files)
    judged = read_tree(tree)
    results = static.check(judged)
    # Nothing in the unpatched tree is compared with a vendored module.
    if any(not name.startswith(f"{PROJECT.vendor_folder}/") for name in edited):
        results = [*results, *off_npu.check(judged, unpatched(fault.release))]
    found = {each.id for each in results if each.verdict == "fail"}
    base = release_tree(fault.release) / "sglang"
    subject = subject_of(tree, expected_statuses(fault.release), base)
    for group in GROUPS:
        declared(group)
    with one_thread():
        found |= {each for each in fault.ids & {*CHECKS} if fails(each, subject)}
    return found


def fails(check: str, subject: Subject) -> bool:
    return bool(verdict(CHECKS[check], subject)["verdict"] == "fail")


@pytest.mark.parametrize("name", sampled(tuple(FAULTS), OFTEN))
def test_a_fault_is_found_under_its_seam(name: str) -> None:
    fault = FAULTS[name]
    found = failures(fault)
    assert fault.ids & found
    seams = {check.partition(".")[0] for check in found}
    assert seams <= {"series", "tree", fault.seam, *fault.also}


def test_faults_concern_every_seam() -> None:
    assert {fault.seam for fault in FAULTS.values()} == {*SEAMS}
    assert {FAULTS[name].seam for name in OFTEN} == {*SEAMS}
    assert {fault.release for fault in FAULTS.values()} == {NEWEST, WITHHELD, WITHOUT_GATE}
    assert len({(fault.release, fault.edits) for fault in FAULTS.values()}) == len(FAULTS)


def test_faults_are_found_by_checks_that_exist() -> None:
    ids = {check.id for group in GROUPS for check in declared(group)}
    ids |= {f"{seam}.{off_npu.CHECK}" for seam in SEAMS}
    ids |= {*static.CHECKS, off_npu.NOWHERE_ELSE}
    assert {name: fault.ids - ids for name, fault in FAULTS.items() if not fault.ids <= ids} == {}


def test_the_page_lists_every_fault() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
