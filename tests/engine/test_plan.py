from __future__ import annotations

from pathlib import Path

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.plan import check_selection, make_plan, prove
from sgl_npu_patch.engine.text.source import read_source
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.vendor import render
from tests.engine.package import (
    ADDED,
    ARGUMENTS,
    ATTENTION,
    BATCH,
    BATCH_INFO,
    CHANGED,
    COMMON,
    MODE,
    SAMPLER,
    SOURCES,
    VENDORED,
    build,
    plan_of,
    snapshot,
)
from tests.upstream.releases import release_tree

EXPECTED = {
    "backend_lists": "pending",
    "radix_cache": "pending",
    "sampling_backend": "not-needed",
    "device_dispatch": "pending",
    "batch_invariant": "pending",
    "sampler": "not-needed",
    "attention_comment": "not-needed",
    "npu_ops": "pending",
    "launch_guards": "pending",
    "penalties": "pending",
    "seeded_sampling": "pending",
}


def line_of(name: str, text: str) -> int:
    """Say in which line of a source a text stands, which must be there once."""
    (line,) = [n for n, each in enumerate(SOURCES[name].splitlines(), 1) if text in each]
    return line


def test_statuses_in_series_order(tmp_path: Path) -> None:
    build(tmp_path)
    outcomes = plan_of(tmp_path).outcomes
    assert {outcome.seam: outcome.status for outcome in outcomes} == EXPECTED
    assert [outcome.seam for outcome in outcomes] == list(SERIES)


def test_planning_writes_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    plan = plan_of(tmp_path)
    prove(plan)
    assert snapshot(tmp_path) == before


def test_changes_are_relative_to_the_root(tmp_path: Path) -> None:
    package = build(tmp_path)
    for root, prefix in ((tmp_path, "python/sglang/"), (package.parent, "sglang/"), (package, "")):
        changes = plan_of(root).changes
        assert [str(path) for path in changes.changed] == [f"{prefix}{name}" for name in CHANGED]
        assert [str(path) for path in changes.added] == [f"{prefix}{name}" for name in ADDED]


def test_sites_count_in_the_tree_as_read(tmp_path: Path) -> None:
    """The radix gate is inserted above the launch guards in the same function."""
    build(tmp_path, ".")
    found = {
        outcome.seam: [(str(site.path), site.line) for site in outcome.sites]
        for outcome in plan_of(tmp_path).outcomes
    }
    guards = line_of(ARGUMENTS, "self.last = True")
    assert found == {
        "backend_lists": [(ARGUMENTS, line_of(ARGUMENTS, "CHOICES = ["))],
        "radix_cache": [(ARGUMENTS, line_of(ARGUMENTS, "raise ValueError") + 1)],
        "sampling_backend": [(SAMPLER, 1)],
        "device_dispatch": [(COMMON, line_of(COMMON, "else:"))],
        "batch_invariant": [
            (MODE, line_of(MODE, "    key = ") + 1),
            (MODE, line_of(MODE, "def disable") + 2),
            (MODE, line_of(MODE, "    yield")),
        ],
        "sampler": [(SAMPLER, 1)],
        "attention_comment": [(ATTENTION, line_of(ATTENTION, "if self.use_fia"))],
        "npu_ops": [(f"{VENDORED}/npu_ops.py", 0)],
        "launch_guards": [(ARGUMENTS, guards), (f"{VENDORED}/launch_guards.py", 0)],
        "penalties": [
            (BATCH_INFO, line_of(BATCH_INFO, "return ret")),
            (BATCH_INFO, line_of(BATCH_INFO, "self.update_penalties()")),
            (BATCH, line_of(BATCH, ".is_required")),
            (f"{VENDORED}/penalties.py", 0),
        ],
        "seeded_sampling": [
            (SAMPLER, line_of(SAMPLER, "return probs.sort")),
            (f"{VENDORED}/seeded_sampling.py", 0),
        ],
    }


@pytest.mark.parametrize("version", ["0.5.3.post2", "0.5.9", "0.5.12.post1"])
def test_sites_of_a_release_stand_in_their_symbols(version: str) -> None:
    tree = release_tree(version)
    for outcome in plan_of(tree).outcomes:
        for site in outcome.sites:
            if not site.line:
                continue
            data = (tree / site.path).read_bytes()
            (block,) = (
                block
                for block in read_source(site.path, data).blocks
                if block.qualname == site.symbol and block.kind != "import"
            )
            last = data.count(b"\n", 0, len(data.decode()[: block.end].encode()))
            assert block.line - 1 <= site.line <= last, (outcome.seam, str(site), last)


def test_every_conflict_is_reported_and_nothing_planned(tmp_path: Path) -> None:
    build(tmp_path, common="def is_npu():\n    return False\n", sampler="x = 1\n")
    plan = plan_of(tmp_path)
    named = {outcome.seam for outcome in plan.conflicts}
    assert {"device_dispatch", "sampler"} <= named
    assert plan.changes.changes == ()
    assert all(outcome.evidence and outcome.evidence.action for outcome in plan.conflicts)
    statuses = {outcome.seam: outcome.status for outcome in plan.outcomes}
    assert statuses["radix_cache"] == "pending"


def test_conflict_is_handed_on_to_who_needs_the_seam(tmp_path: Path) -> None:
    package = build(tmp_path)
    foreign = package / VENDORED / "npu_ops.py"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("x = 1\n", encoding="utf-8")
    outcomes = {outcome.seam: outcome for outcome in plan_of(tmp_path).outcomes}
    assert outcomes["npu_ops"].status == outcomes["batch_invariant"].status == "conflict"
    assert "npu_ops" in outcomes["batch_invariant"].reason
    assert "did not write" in outcomes["npu_ops"].reason


def test_older_module_is_refreshed(tmp_path: Path) -> None:
    package = build(tmp_path)
    for change in plan_of(tmp_path).changes.changes:
        target = tmp_path / change.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(change.after)
    assert plan_of(tmp_path).changes.changes == ()
    target = package / VENDORED / "npu_ops.py"
    target.write_bytes(
        render(PROJECT, "npu_ops").replace(
            b"sgl-npu-patch " + __version__.encode(), b"sgl-npu-patch 0.0.1"
        )
    )
    plan = plan_of(tmp_path)
    found = {o.seam: (o.status, o.outdated) for o in plan.outcomes if o.status != "not-needed"}
    assert found.pop("npu_ops") == ("pending", True)
    assert set(found.values()) == {("already", False)}
    assert [change.after for change in plan.changes.changes] == [render(PROJECT, "npu_ops")]


def test_too_old(tmp_path: Path) -> None:
    package = build(tmp_path)
    arguments = package / ARGUMENTS
    arguments.write_bytes(
        arguments.read_bytes().replace(b"enable_deterministic_inference", b"something_else")
    )
    with pytest.raises(Refused, match="no deterministic inference"):
        plan_of(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["nothing"], "no such seam: nothing"),
        (["batch_invariant"], "batch_invariant needs npu_ops"),
        (["backend_lists", "npu_ops"], "backend_lists needs radix_cache"),
    ],
)
def test_selection_that_is_none(chosen: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_selection(SERIES, chosen)


def test_selection_is_put_in_order() -> None:
    assert check_selection(SERIES, ["launch_guards", "npu_ops"]) == (
        "npu_ops",
        "launch_guards",
    )


def test_requirement_of_this_tree(tmp_path: Path) -> None:
    build(tmp_path)
    tree = open_directory(tmp_path, PROJECT)
    with pytest.raises(UsageError, match="batch_invariant needs device_dispatch on this tree"):
        make_plan(tree, SERIES, ["batch_invariant", "npu_ops"])
    chosen = make_plan(tree, SERIES, ["batch_invariant", "npu_ops", "device_dispatch"])
    assert {outcome.status for outcome in chosen.outcomes} == {"pending"}


def test_proof_rejects_a_change_that_is_not_seen_as_done(tmp_path: Path) -> None:
    build(tmp_path)
    plan = plan_of(tmp_path)
    (path,) = [path for path in plan.changes.changed if path.name == "common.py"]
    before = plan.overlay.tree.read(path)
    assert before is not None
    plan.overlay.write(path, before)
    with pytest.raises(AssertionError, match="device_dispatch"):
        prove(plan)
