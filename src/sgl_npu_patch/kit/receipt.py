"""Read a kit's receipt, and say which claims about a tree it has measured on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.kit import facts, program

SEAM = "npu_ops"
SIMULATED = "simulated"
"""Stands in the name of a chip that is none."""

MEASURES = {
    "batch_invariant.mm_is_batch_invariant": ("mm", ""),
    "batch_invariant.matmul_is_batch_invariant": ("matmul", ""),
    "batch_invariant.addmm_is_batch_invariant": ("addmm", ""),
    "batch_invariant.bmm_is_batch_invariant": ("bmm", ""),
    "batch_invariant.mean_is_batch_invariant": ("mean.dim", ""),
    "batch_invariant.log_softmax_is_batch_invariant": ("log_softmax", ""),
    "batch_invariant.attention_of_torch_ops_is_batch_invariant": (
        "fused_attention",
        "torch.ops.npu.",
    ),
    "batch_invariant.attention_of_torch_npu_is_batch_invariant": ("fused_attention", "torch_npu."),
    "batch_invariant.add_rms_norm_is_batch_invariant": ("add_rms_norm", ""),
}
"""By a check that simulates an operator: the operator, and how the form of its claims begins."""

_KEYS: dict[str, type] = {
    "tool": dict,
    "date": str,
    "chip": str,
    "versions": dict,
    "npu_ops": str,
    "facts": list,
    "claims": list,
}
_CLAIM: dict[str, type] = {
    "operator": str, "form": str, "dtype": str, "sizes": list, "on": dict, "off": dict
}  # fmt: skip
_PLACE: dict[str, type] = {"size": int, "place": int}
_ELEMENT: dict[str, type] = {**_PLACE, "elements": int, "of": int, "alone": str, "in_batch": str}
_FACT: dict[str, type] = {"id": str, "verdict": str, "found": str, "action": str}


@dataclass(frozen=True, slots=True)
class Receipt:
    """Hold what a kit measured."""

    chip: str
    date: str
    npu_ops: str
    versions: dict[str, str]
    facts: tuple[dict[str, str], ...]
    claims: tuple[dict[str, Any], ...]

    @property
    def where(self) -> str:
        """Name the chip and the software that it was measured with."""
        versions = [f"{name} {version}" for name, version in self.versions.items()]
        return ", ".join([self.chip, *versions, self.date])

    def of(self, operator: str, form: str = "") -> list[dict[str, Any]]:
        """Give the claims about an operator whose form begins so."""
        return [
            claim
            for claim in self.claims
            if claim["operator"] == operator and claim["form"].startswith(form)
        ]


def read(path: Path) -> Receipt:
    """Read a receipt.

    Raises:
        Refused: it is none.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{path} is no receipt of the kit: it is not JSON") from error
    wrong = _wrong(content)
    if wrong:
        raise Refused(f"{path} is no receipt that this version of the kit writes: {wrong}")
    return Receipt(
        chip=content["chip"],
        date=content["date"],
        npu_ops=content["npu_ops"],
        versions=content["versions"],
        facts=tuple(content["facts"]),
        claims=tuple(content["claims"]),
    )


def _wrong(content: Any) -> str:
    """Say what keeps a document from being a receipt; empty if nothing does."""
    if not isinstance(content, dict) or content.get("receipt") != program.RECEIPT:
        return f'it has no "receipt": {program.RECEIPT}'
    lacking = _lacking("it", content, _KEYS)
    if lacking:
        return lacking
    for name, parts, keys in (("a fact", "facts", _FACT), ("a claim", "claims", _CLAIM)):
        for part in content[parts]:
            if lacking := _lacking(name, part, keys):
                return lacking
    for claim in content["claims"]:
        for mode in ("off", "on"):
            if not _is_measured(claim[mode]):
                return f"a claim says neither what {mode} gave nor why it failed"
    return ""


def _lacking(name: str, part: Any, keys: dict[str, type]) -> str:
    for key, kind in keys.items():
        if not isinstance(part, dict) or not isinstance(part.get(key), kind):
            return f"{name} has no {kind.__name__} {key}"
    return ""


def _is_measured(given: dict[str, Any]) -> bool:
    if isinstance(given.get("error"), str):
        return True
    if "first" not in given or given["first"] is None:
        return given.keys() >= {"equal", "first"} and given["equal"] is True
    first = given["first"]
    if not isinstance(first, dict) or given.get("equal") is not False:
        return False
    return not _lacking("it", first, _ELEMENT if "element" in first else _PLACE)


def results(receipt: Receipt, tree: SourceTree, simulated: Sequence[Result]) -> list[Result]:
    """Mark what is measured besides being simulated, and add what only a device can show."""
    fits = _fits(receipt, tree)
    if fits.verdict != "pass":
        return [*simulated, fits]
    marked = [_marked(receipt, result) for result in simulated]
    return [*marked, fits, _machine(receipt), *_operators(receipt)]


def _marked(receipt: Receipt, result: Result) -> Result:
    claims = receipt.of(*MEASURES.get(result.id, ("", "")))
    verdicts = {program.verdict(claim) for claim in claims}
    if result.verdict != "pass" or program.HOLDS not in verdicts or program.BROKEN in verdicts:
        return result
    return replace(result, measured=receipt.chip)


def _fits(receipt: Receipt, tree: SourceTree) -> Result:
    data = tree.read(tree.package / PROJECT.vendor_folder / f"{SEAM}.py")
    own = "" if data is None else vendor.unmodified(PROJECT, data)
    found = ""
    if SIMULATED in receipt.chip:
        found = f"a receipt of a simulation, {receipt.chip}"
    elif not receipt.chip or not receipt.claims:
        found = "a receipt of a machine without a device"
    elif not own:
        found = "a tree without it" if data is None else "a tree in which it is edited"
    elif own != receipt.npu_ops:
        found = "a receipt of another npu_ops than the tree's"
    return _result(
        "receipt_fits",
        "The receipt is of a device, and of the npu_ops that the tree has.",
        "fail" if found else "pass",
        receipt.where,
        expected="a receipt of a device and of the tree's own npu_ops",
        found=found,
        action="write a kit with the version of sgl-npu-patch that patched the tree, and run it",
    )


def _machine(receipt: Receipt) -> Result:
    # The environment is the server's, which the kit did not start.
    wrong = [
        f"{fact['id']}: {fact['found']}"
        for fact in receipt.facts
        if fact["verdict"] == facts.WRONG and not fact["id"].startswith("environment.")
    ]
    return _result(
        "measured_machine",
        "Nothing on the measured machine is missing or wrong.",
        "fail" if wrong else "pass",
        receipt.where,
        expected="a machine on which doctor finds nothing wrong",
        found="; ".join(wrong),
        action="put it right on that machine and run the kit again",
    )


def _operators(receipt: Receipt) -> Iterator[Result]:
    known = dict.fromkeys(facts.OPERATORS)
    for operator in known | dict.fromkeys(claim["operator"] for claim in receipt.claims):
        claims = receipt.of(operator)
        by_verdict: dict[str, list[dict[str, Any]]] = {}
        for claim in claims:
            by_verdict.setdefault(program.verdict(claim), []).append(claim)
        broken = by_verdict.get(program.BROKEN, [])
        held = by_verdict.get(program.HOLDS, [])
        meaning = f"Measured, a row of {operator} has the same bits alone and in every batch."
        types = ", ".join(dict.fromkeys(claim["dtype"] for claim in held))
        verdict: Verdict = "fail" if broken else "pass" if held else "not-applicable"
        message = f"On {receipt.chip}, in {types}."
        if not held:
            message = "The receipt has no comparison of it that the device could make."
        elif all(claim["off"].get("equal") for claim in held):
            message += " The original operator does not differ at these sizes either."
        yield _result(
            f"measured_{operator.replace('.', '_')}",
            meaning,
            verdict,
            message,
            expected="the bits of the row alone",
            found="; ".join(
                f"{claim['form']}, {claim['dtype']}: {program.said(claim['on'])}"
                for claim in broken
            ),
            action="do not serve with this chip and these versions; report it with the receipt",
            measured="" if not claims else receipt.chip,
        )


def _result(
    name: str,
    meaning: str,
    verdict: Verdict,
    message: str,
    *,
    expected: str,
    found: str,
    action: str,
    measured: str = "",
) -> Result:
    failed = verdict == "fail"
    return Result(
        id=f"{SEAM}.{name}",
        seam=SEAM,
        kind="measured",
        verdict=verdict,
        meaning=meaning,
        message=f"expected {expected}, found {found}" if failed else f"{meaning} {message}",
        expected=expected if failed else "",
        found=found,
        action=action if failed else "",
        measured=measured,
    )
