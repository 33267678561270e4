"""Run the product's behaviour checks on SGLang releases, in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sgl_npu_patch.simulator.schemas import DEFAULT
from sgl_npu_patch.verify.behaviour import CHECKS, Subject, declared
from sgl_npu_patch.verify.behaviour.__main__ import verdict
from tests.upstream.releases import FORKS_NATIVE, RELEASES_NATIVE, release_tree
from tests.upstream.test_statuses import expected_hardened, expected_statuses
from tests.upstream.trees import patched_tree

LEFT_OUT = ("not-needed", "withheld")
Verdicts = dict[str, dict[str, Any]]


def hardened_subject(version: str) -> Subject:
    """Name a release with an adaptation of upstream's after `apply --series all`."""
    base = release_tree(version) / "sglang"
    return subject_of(patched_tree(version, "all"), expected_hardened(version), base)


def subject(version: str) -> Subject:
    """Name a release after `apply`, with the unpatched one to compare with."""
    native = version in (*RELEASES_NATIVE, *FORKS_NATIVE)
    pristine = release_tree(version)
    tree = pristine if native else patched_tree(version)
    return subject_of(tree, expected_statuses(version), pristine / "sglang")


def subject_of(tree: Path, statuses: Mapping[str, str], base: Path | None = None) -> Subject:
    """Name a tree whose seams have these statuses."""
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
    """Give the message of each check that fails."""
    return {name: told["message"] for name, told in found.items() if told["verdict"] == "fail"}


def not_applicable(found: Verdicts) -> set[str]:
    """Name the checks that have no meaning on the tree."""
    return {name for name, told in found.items() if told["verdict"] == "not-applicable"}


def gaps_of(names: Collection[str]) -> set[str]:
    """Name the gaps of native releases that the failure of these checks is."""
    return {CHECKS[name].gap for name in names}


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads, which costs more than these tensors do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
