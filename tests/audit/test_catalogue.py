from __future__ import annotations

import pytest

from sgl_npu_patch.audit.catalogue import UNLISTED, VERDICTS, load, parse
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.gaps import GAPS

ENTRY = """
[[operator]]
names = {names}
verdict = "{verdict}"
why = "It sums."
source = "here"
"""


def entry(*names: str, verdict: str = "native") -> str:
    return ENTRY.format(names=list(names), verdict=verdict)


def test_every_entry_says_why_in_one_sentence_and_where_from() -> None:
    operators = load().operators
    assert len(operators) > 400
    for name, operator in operators.items():
        assert operator.why.endswith("."), name
        assert ". " not in operator.why, name
        assert operator.source, name
        assert operator.verdict in VERDICTS, name


def test_entries_name_seams_and_gaps_that_exist() -> None:
    named = {each.covered_by for each in load().operators.values() if each.covered_by}
    assert named <= {*SERIES} | {*GAPS}


def test_what_is_replaced_says_by_what_or_by_itself() -> None:
    for name, operator in load().operators.items():
        assert not operator.by or operator.verdict == "replaced", name


@pytest.mark.parametrize(
    "name",
    [
        "torch_npu.npu_x",
        "torch.ops.npu.npu_x",
        "torch.ops.atb.npu_x",
        "torch.ops.custom.npu_x",
        "sgl_kernel_npu.norm.npu_x",
    ],
)
def test_an_operator_is_known_in_every_namespace_of_the_npu(name: str) -> None:
    assert parse(entry("npu_x")).find(name).why == "It sums."


@pytest.mark.parametrize(
    "name", ["torch.npu_x", "torch.ops.other.npu_x", "torch_npu.npu_y", "other.npu_x"]
)
def test_another_operator_is_unknown(name: str) -> None:
    assert parse(entry("npu_x")).find(name) is UNLISTED


def test_a_namespace_is_known_as_a_whole() -> None:
    catalogue = parse(entry("torch.npu.*"))
    assert catalogue.find("torch.npu.utils.stream").why == "It sums."
    assert catalogue.find("torch.npux.stream") is UNLISTED


def test_an_operator_stands_there_once() -> None:
    with pytest.raises(ValueError, match="npu_x is in the catalogue twice"):
        parse(entry("npu_x", "npu_y") + entry("npu_x"))


def test_a_verdict_is_one_of_four() -> None:
    with pytest.raises(ValueError, match="fine is no verdict"):
        parse(entry("npu_x", verdict="fine"))
