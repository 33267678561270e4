"""Run the behaviour checks of `verify` on SGLang releases, in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sgl_npu_patch.simulator.schemas import DEFAULT
from sgl_npu_patch.verify.behaviour import CHECKS, Subject, declared
from sgl_npu_patch.verify.behaviour import sampler_machine as sampling
from sgl_npu_patch.verify.behaviour.__main__ import verdict
from tests.upstream.edited import OPS, SAMPLER, Files, judge, lay_out, result, statuses
from tests.upstream.releases import release_tree
from tests.upstream.test_statuses import expected_statuses
from tests.upstream.trees import patched_tree

LEFT_OUT = ("not-needed", "withheld")
Verdicts = dict[str, dict[str, Any]]


def subject(version: str) -> Subject:
    """Return a release after `apply`, with the unpatched one to compare with."""
    base = release_tree(version) / "sglang"
    return subject_of(patched_tree(version), expected_statuses(version), base)


def native_subject(version: str) -> Subject:
    """Return a release with upstream's own form, as it is published."""
    tree = release_tree(version)
    patched = expected_statuses(version)
    own = {seam: "upstream" if status == "pending" else status for seam, status in patched.items()}
    return subject_of(tree, own, tree / "sglang")


def subject_of(tree: Path, statuses: Mapping[str, str], base: Path | None = None) -> Subject:
    """Return a tree whose seams have these statuses."""
    return Subject(
        package=tree / "sglang",
        base=base,
        left_out={seam: status for seam, status in statuses.items() if status in LEFT_OUT},
        native=statuses["batch_invariant"] == "upstream",
        torch_npu=DEFAULT,
    )


def verdicts(of: Subject, *groups: str) -> Verdicts:
    """Run the checks of some groups."""
    with one_thread():
        return {each.id: verdict(each, of) for group in groups for each in declared(group)}


def failed(found: Verdicts) -> dict[str, str]:
    """Return the message of each check that fails."""
    return {name: told["message"] for name, told in found.items() if told["verdict"] == "fail"}


def not_applicable(found: Verdicts) -> set[str]:
    """Return the checks that have no meaning on the tree."""
    return {name for name, told in found.items() if told["verdict"] == "not-applicable"}


def gaps_of(names: Collection[str]) -> set[str]:
    """Return the gaps that these checks are about."""
    return {CHECKS[name].gap for name in names}


def check_behaviour(
    version: str,
    files: Files,
    found: dict[str, str],
    edited: Collection[str] = (OPS, SAMPLER),
) -> None:
    """Execute what the series makes of a tree; operators and sampler if their file was edited."""
    plan = judge(files)
    assert statuses(plan) == found
    assert "conflict" not in found.values()
    folder = lay_out(version, result(files, plan))
    groups = ("handler", "dispatch", *(("batch_invariant", "npu_ops") if OPS in edited else ()))
    assert failed(verdicts(subject_of(folder, found), *groups)) == {}
    if SAMPLER in edited and found["sampler"] in ("pending", "already"):
        check_sampler(folder)


def check_sampler(folder: Path) -> None:
    """Draw tokens with and without neighbours, which must be the same."""
    with one_thread():
        on = sampling.Machine(folder)
        for subject in ("plain", "top-k-and-top-p", "all", "greedy"):
            subjects = sampling.with_seeds(sampling.SUBJECTS[subject], 20)
            alone = [on.draw([each])[0] for each in subjects]
            for neighbours in ("simple", "fused-both", "sorted-top-p", "mixed"):
                assert sampling.draw_among(on, subjects, sampling.NEIGHBOURS[neighbours]) == alone
        assert on.seeded_calls
        assert not any(
            compiled.calls for compiled in on.execution.compiled if not compiled.disabled
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads, which costs more than these tensors do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
