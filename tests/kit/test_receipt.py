from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.kit import facts
from sgl_npu_patch.kit.receipt import MEASURES, read, results
from sgl_npu_patch.verify import isolation
from sgl_npu_patch.verify.behaviour import declared
from tests.engine.package import run
from tests.reports.test_schemas import check
from tests.upstream.program import Run
from tests.verify.checked import lay_out, original, patched

NPU_OPS = f"{PROJECT.vendor_folder}/npu_ops.py"
MM = "batch_invariant.mm_is_batch_invariant"
EQUAL = {"equal": True, "first": None}
DIFFERS = {
    "equal": False,
    "first": {
        "size": 3,
        "place": 1,
        "element": 7,
        "alone": "3f80",
        "in_batch": "3f81",
        "elements": 2,
        "of": 64,
    },
}
FAILS = {"error": "RuntimeError: the kernel failed"}
FORMS = {"fused_attention": ("torch.ops.npu.x, decode", "torch_npu.x, decode")}
RECEIPT: dict[str, Any] = {
    "receipt": 1,
    "tool": {"name": "sgl-npu-patch", "version": "0.2.0"},
    "date": "2026-01-05",
    "chip": "Ascend910B3",
    "versions": {"python": "3.11.9", "torch": "2.8.0", "torch_npu": "2.8.0.post2"},
    "npu_ops": vendor.digest(vendor.body(PROJECT, "npu_ops")),
    "facts": [{"id": "cann.version", "verdict": "ok", "found": "8.2.RC1", "action": ""}],
    "claims": [
        {
            "operator": operator,
            "form": form,
            "dtype": dtype,
            "sizes": [2, 3],
            "off": DIFFERS,
            "on": EQUAL,
            "deviation": 0.0,
        }
        for operator in facts.OPERATORS
        for form in FORMS.get(operator, (f"torch.{operator}(x)",))
        for dtype in ("float16", "bfloat16")
    ],
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return lay_out(patched(), tmp_path / "tree")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every check that simulates an operator pass, at once."""

    def checks(groups: Sequence[str], request: Mapping[str, Any]) -> list[Result]:
        return [
            Result(
                id=name,
                seam="batch_invariant",
                kind="behaviour",
                verdict="pass",
                meaning="It holds.",
                message="It holds.",
            )
            for name in (*MEASURES, "batch_invariant.the_mode_can_be_entered_again")
        ]

    monkeypatch.setattr(isolation, "run", checks)


Change = Callable[[dict[str, Any]], object]


def verify(tree: Path, change: Change = lambda receipt: None, *options: str) -> Run:
    receipt = copy.deepcopy(RECEIPT)
    change(receipt)
    check(receipt, "receipt")
    return run("verify", tree, "--receipt", write(tree, receipt), *options)


def write(tree: Path, receipt: Any) -> Path:
    path = tree.parent / "receipt.json"
    path.write_text(json.dumps(receipt), encoding="utf-8")
    return path


def claims(receipt: dict[str, Any], operator: str, **values: Any) -> None:
    for claim in receipt["claims"]:
        if claim["operator"] == operator:
            claim.update(values)


def of(done: Run, kind: str) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in done.report["checks"] if each["kind"] == kind}


def test_what_is_measured_is_marked(tree: Path) -> None:
    done = verify(tree, lambda receipt: None, "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    check(done.report, "document")
    behaviour = {name: each["measured"] for name, each in of(done, "behaviour").items()}
    assert behaviour == {
        **dict.fromkeys(MEASURES, "Ascend910B3"),
        "batch_invariant.the_mode_can_be_entered_again": "",
    }
    measured = of(done, "measured")
    names = [f"npu_ops.measured_{name.replace('.', '_')}" for name in facts.OPERATORS]
    assert [*measured] == ["npu_ops.receipt_fits", "npu_ops.measured_machine", *names]
    assert {each["verdict"] for each in measured.values()} == {"pass"}
    printed = verify(tree).stdout.decode()
    assert "pass  mm_is_batch_invariant: It holds. (measured on Ascend910B3)\n" in printed
    assert "pass  the_mode_can_be_entered_again: It holds.\n" in printed
    assert "in every batch. On Ascend910B3, in float16, bfloat16.\n" in printed


def test_without_executing_the_tree(tree: Path) -> None:
    done = verify(tree, lambda receipt: None, "--static", "--format", "json")
    assert done.code == 0
    assert of(done, "behaviour") == {}
    assert of(done, "measured")["npu_ops.measured_mm"]["verdict"] == "pass"


def test_a_measured_difference_fails(tree: Path) -> None:
    def change(receipt: dict[str, Any]) -> None:
        mine = [claim for claim in receipt["claims"] if claim["operator"] == "mm"]
        mine[1]["on"] = DIFFERS

    done = verify(tree, change, "--format", "json")
    assert done.code == 1
    failed = of(done, "measured")["npu_ops.measured_mm"]
    assert failed["verdict"] == "fail"
    assert failed["found"] == (
        "torch.mm(x), bfloat16: differs as row 1 of 3, in 2 of 64 elements: 3f81, alone 3f80"
    )
    marks = of(done, "behaviour")
    assert (marks[MM]["verdict"], marks[MM]["measured"]) == ("pass", "")
    assert marks["batch_invariant.addmm_is_batch_invariant"]["measured"] == "Ascend910B3"
    printed = verify(tree, change).stdout.decode()
    assert "FAIL npu_ops.measured_mm\n  expected the bits of the row alone\n" in printed


def test_one_name_of_the_attention_is_not_the_other(tree: Path) -> None:
    def change(receipt: dict[str, Any]) -> None:
        for claim in receipt["claims"]:
            if claim["form"].startswith("torch_npu."):
                claim["on"] = DIFFERS

    marks = of(verify(tree, change, "--format", "json"), "behaviour")
    name = "batch_invariant.attention_of_{}_is_batch_invariant"
    assert marks[name.format("torch_ops")]["measured"] == "Ascend910B3"
    assert marks[name.format("torch_npu")]["measured"] == ""


@pytest.mark.parametrize(
    ("values", "verdict", "said"),
    [
        # What works without the mode and fails in it is a failure.
        ({"on": FAILS}, "fail", "the kernel failed"),
        ({"off": FAILS}, "pass", "has the same bits"),
        # What the device cannot do at all says nothing.
        ({"on": FAILS, "off": FAILS}, "not-applicable", "no comparison of it that the device"),
        ({"off": EQUAL}, "pass", "original operator does not differ at these sizes either"),
        ({"on": {"equal": False, "first": {"size": 2, "place": 0, "shape": [1]}}}, "fail", "shape"),
    ],
)
def test_verdicts(tree: Path, values: dict[str, Any], verdict: str, said: str) -> None:
    receipt = copy.deepcopy(RECEIPT)
    claims(receipt, "mm", **values)
    found = results(read(write(tree, receipt)), open_directory(tree, PROJECT), [])
    (mm,) = [each for each in found if each.id == "npu_ops.measured_mm"]
    assert (mm.verdict, said in mm.message) == (verdict, True), mm.message


def test_an_operator_that_was_not_compared(tree: Path) -> None:
    def change(receipt: dict[str, Any]) -> None:
        receipt["claims"] = [c for c in receipt["claims"] if c["operator"] != "mm"]

    done = verify(tree, change, "--format", "json")
    assert of(done, "measured")["npu_ops.measured_mm"]["verdict"] == "not-applicable"
    assert of(done, "behaviour")[MM]["measured"] == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"npu_ops": "0" * 64}, "another npu_ops than the tree's"),
        ({"chip": "Ascend910B (simulated)"}, "a receipt of a simulation"),
        ({"chip": "", "claims": []}, "a machine without a device"),
    ],
)
def test_a_receipt_that_says_nothing_about_the_tree(
    tree: Path, values: dict[str, Any], said: str
) -> None:
    done = verify(tree, lambda receipt: receipt.update(values), "--format", "json")
    assert done.code == 1
    (found,) = of(done, "measured").values()
    assert (found["id"], found["verdict"]) == ("npu_ops.receipt_fits", "fail")
    assert said in found["found"]
    assert {each["measured"] for each in of(done, "behaviour").values()} == {""}


def test_trees_that_no_receipt_is_about(tree: Path, tmp_path: Path) -> None:
    edited = tree / "sglang" / NPU_OPS
    edited.write_bytes(edited.read_bytes().replace(b"def mm(", b"def  mm("))
    for path, said in (
        (tree, "a tree in which it is edited"),
        (lay_out(original(), tmp_path / "unpatched"), "a tree without it"),
    ):
        options = ("--static", "--only", "npu_ops.receipt_fits", "--format", "json")
        done = verify(path, lambda receipt: None, *options)
        assert done.code == 1
        assert of(done, "measured")["npu_ops.receipt_fits"]["found"] == said


def test_line_endings_do_not_count(tree: Path) -> None:
    turned = tree / "sglang" / NPU_OPS
    turned.write_bytes(turned.read_bytes().replace(b"\n", b"\r\n"))
    done = verify(tree, lambda receipt: None, "--static", "--only", "npu_ops.receipt_fits")
    assert done.code == 0


def test_a_machine_on_which_something_is_wrong(tree: Path) -> None:
    def wrong(name: str) -> dict[str, str]:
        return {"id": name, "verdict": "wrong", "found": "missing", "action": ""}

    # The environment is the server's, not that of who runs the kit.
    for name, verdict in (("environment.ASCEND_USE_FIA", "pass"), ("sampler.float64", "fail")):
        receipt = copy.deepcopy(RECEIPT)
        receipt["facts"].append(wrong(name))
        path = write(tree, receipt)
        done = run("verify", tree, "--receipt", path, "--static", "--format", "json")
        assert of(done, "measured")["npu_ops.measured_machine"]["verdict"] == verdict


@pytest.mark.parametrize(
    "spoil",
    [
        lambda receipt: [],
        lambda receipt: None,
        lambda receipt: {**receipt, "receipt": 2},
        lambda receipt: {**receipt, "claims": {}},
        lambda receipt: {**receipt, "claims": ["mm"]},
        lambda receipt: {**receipt, "claims": [{**receipt["claims"][0], "on": {}}]},
        lambda receipt: {**receipt, "claims": [{**receipt["claims"][0], "on": {"equal": True}}]},
        lambda receipt: {
            **receipt,
            "claims": [{**receipt["claims"][0], "on": {"equal": True, "first": {"size": 1}}}],
        },
        lambda receipt: {
            **receipt,
            "claims": [{**receipt["claims"][0], "on": {"equal": False, "first": None}}],
        },
        lambda receipt: {
            **receipt,
            "claims": [{**receipt["claims"][0], "on": {"equal": False, "first": []}}],
        },
        lambda receipt: {**receipt, "facts": [{"id": "x"}]},
        lambda receipt: {key: value for key, value in receipt.items() if key != "npu_ops"},
    ],
)
def test_what_is_no_receipt(tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    with pytest.raises(Refused, match="is no receipt"):
        read(write(tmp_path / "tree", spoil(copy.deepcopy(RECEIPT))))


def test_whatever_stands_in_a_receipt_it_is_judged_or_refused(tree: Path) -> None:
    receipt = copy.deepcopy(RECEIPT)
    receipt["claims"] = receipt["claims"][:2]
    receipt["claims"][0]["on"] = copy.deepcopy(DIFFERS)
    opened = open_directory(tree, PROJECT)
    refused = 0
    for place in places(receipt):
        for other in (None, 5, True, "x", [], ["x"], {}, {"error": "x"}, {"element": 1}):
            changed = copy.deepcopy(receipt)
            *above, last = place
            part: Any = changed
            for key in above:
                part = part[key]
            part[last] = other
            try:
                found = results(read(write(tree, changed)), opened, [])
            except Refused:
                refused += 1
            else:
                broken = "fail" in {each.verdict for each in found}
                # Nothing hides a difference but that it is not there any more.
                assert broken or place[:3] == ("claims", 0, "on"), (place, other)
    assert refused


def places(part: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every place in a document by its keys."""
    items: list[tuple[Any, Any]] = []
    if isinstance(part, dict):
        items = [*part.items()]
    elif isinstance(part, list):
        items = [*enumerate(part)]
    found = []
    for key, value in items:
        found += [(*above, key), *places(value, (*above, key))]
    return found


def test_files_that_are_no_receipt(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff{")
    for path, code in ((tmp_path / "text", 4), (tmp_path / "none", 4), (tmp_path, 4), ("", 2)):
        assert run("verify", tree, "--static", "--receipt", path).code == code


def test_the_other_formats(tree: Path) -> None:
    done = verify(tree, lambda receipt: claims(receipt, "mm", on=DIFFERS), "--format", "junit")
    assert (done.code, b"npu_ops.measured_mm" in done.stdout) == (1, True)
    done = verify(tree, lambda receipt: claims(receipt, "mm", on=DIFFERS), "--format", "sarif")
    assert (done.code, b"npu_ops.measured_mm" in done.stdout) == (1, True)


def test_every_check_that_is_measured_exists() -> None:
    assert MEASURES.keys() <= {each.id for each in declared("batch_invariant")}
    assert {operator for operator, _ in MEASURES.values()} <= {*facts.OPERATORS}
