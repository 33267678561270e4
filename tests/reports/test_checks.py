"""Every form of the report says the same of the same checks."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import CheckKind, Result, Verdict
from sgl_npu_patch.reports.checks_text import by_seam, count
from sgl_npu_patch.reports.codec import tree_document
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.formats import render as render_as
from sgl_npu_patch.reports.plain import visible
from tests.helpers import MemoryTree

SITE = Site(PurePosixPath("python/sglang/srt/a b.py"), 7, "Sampler.forward")


def result(
    name: str,
    verdict: Verdict,
    *,
    kind: CheckKind = "static",
    site: Site | None = None,
    **more: Any,
) -> Result:
    return Result(
        id=name,
        seam=name.partition(".")[0] if name != "series.x" else "",
        kind=kind,
        verdict=verdict,
        meaning=f"What {name} means.",
        site=site,
        **{"message": f"message of {name}", **more},
    )


FAILURE = result(
    "sampler.draws",
    "fail",
    kind="behaviour",
    site=SITE,
    message="the token < 7 & differs \x1b",
    expected="a token of its own",
    found="its neighbour's",
    code="draw(a, b)\n  == draw(b, a)",
    action="see the log",
    gap="neighbour_dependent_draw",
)
RESULTS = (
    result("npu_ops.in_place", "pass", site=Site(SITE.path, 0, "")),
    FAILURE,
    result("series.x", "pass"),
    result("sampler.filters", "not-applicable", message="withheld: unsafe"),
    result("npu_ops.rebinds", "fail", message="AssertionError: 1 != 2"),
)


class InFork(Target):
    """Stand for a tree below the root of its repository."""

    @property
    def prefix(self) -> PurePosixPath:
        return PurePosixPath("fork")


DOCUMENT = tree_document(MemoryTree({}, label="tree"), None, RESULTS)


def render(form: str) -> str:
    return render_as(form, "checks", DOCUMENT, InFork())


def verdicts_of_text() -> dict[str, str]:
    words = {"pass": "pass", "FAIL": "fail", "n/a": "not-applicable"}
    found, seam = {}, ""
    for line in render("text").partition("\nFAIL ")[0].splitlines():
        if line and not line.startswith(" "):
            seam = line
        elif line:
            word, name = line.split(None, 2)[:2]
            found[f"{seam}.{name.rstrip(':')}"] = words[word]
    return found


def verdicts_of_junit() -> dict[str, str]:
    root = ElementTree.fromstring(render("junit"))  # noqa: S314  # our own output
    found = {}
    for case in root.iter("testcase"):
        tags = [child.tag for child in case]
        assert tags in ([], ["failure"], ["skipped"])
        verdict = {"failure": "fail", "skipped": "not-applicable"}.get((tags or [""])[0], "pass")
        found[case.attrib["name"]] = verdict
    return found


def verdicts_of_sarif() -> dict[str, str]:
    (run,) = json.loads(render("sarif"))["runs"]
    kinds = {"pass": "pass", "fail": "fail", "notApplicable": "not-applicable"}
    return {r["ruleId"]: kinds[r["kind"]] for r in run["results"]}


EXPECTED = {each.id: each.verdict for each in RESULTS}


def test_json_holds_all_of_a_result() -> None:
    documents = DOCUMENT["checks"]
    assert {each["id"]: each["verdict"] for each in documents} == EXPECTED
    assert documents[1] == {
        "id": "sampler.draws",
        "seam": "sampler",
        "kind": "behaviour",
        "verdict": "fail",
        "message": FAILURE.message,
        "site": {"path": "python/sglang/srt/a b.py", "line": 7, "symbol": "Sampler.forward"},
        "meaning": "What sampler.draws means.",
        "expected": "a token of its own",
        "found": "its neighbour's",
        "code": FAILURE.code,
        "action": "see the log",
        "gap": "neighbour_dependent_draw",
        "measured": "",
    }
    assert documents[3]["site"] is None


@pytest.mark.parametrize("verdicts", [verdicts_of_text, verdicts_of_junit, verdicts_of_sarif])
def test_verdicts_agree(verdicts: object) -> None:
    assert callable(verdicts)
    assert verdicts() == EXPECTED


def test_seams_in_the_order_in_which_they_come_first() -> None:
    assert [(seam, [r.id for r in group]) for seam, group in by_seam(RESULTS)] == [
        ("npu_ops", ["npu_ops.in_place", "npu_ops.rebinds"]),
        ("sampler", ["sampler.draws", "sampler.filters"]),
        ("series", ["series.x"]),
    ]


def test_text_explains_each_failure() -> None:
    printed = render("text")
    assert printed.startswith(
        f"SGLang of unknown version in tree: {count(RESULTS)}\n\nnpu_ops\n  pass  in_place: "
    )
    assert "  n/a   filters: withheld: unsafe\n" in printed
    assert printed.endswith(f"\n\n{count(RESULTS)}\n")
    assert count(RESULTS) == "2 passed, 2 failed, 1 not applicable"
    assert (
        """
FAIL sampler.draws (gap neighbour_dependent_draw)
  expected a token of its own
  found    its neighbour's
  code     draw(a, b)
             == draw(b, a)
  where    python/sglang/srt/a b.py:7 Sampler.forward
  seam     sampler: sgl-npu-patch explain sampler
  next     see the log
"""
        in printed
    )
    assert (
        """
FAIL npu_ops.rebinds
  found    AssertionError: 1 != 2
  seam     npu_ops: sgl-npu-patch explain npu_ops
"""
        in printed
    )


def test_junit_has_the_usual_shape() -> None:
    root = ElementTree.fromstring(render("junit"))  # noqa: S314  # our own output
    assert root.tag == "testsuites"
    assert root.attrib["name"] == "sgl-npu-patch verify tree"
    counts = ("tests", "failures", "errors", "skipped")
    assert [root.attrib[name] for name in counts] == ["5", "2", "0", "1"]
    suites = list(root)
    assert [suite.attrib["name"] for suite in suites] == ["npu_ops", "sampler", "series"]
    for suite in suites:
        assert suite.tag == "testsuite"
        assert suite.attrib["tests"] == str(len(list(suite)))
        for case in suite:
            assert case.tag == "testcase"
            assert case.attrib["classname"] == f"sgl_npu_patch.{suite.attrib['name']}"
    failure = root.find(".//failure")
    assert failure is not None
    assert root.find(".//testcase[@name='sampler.draws']/failure") is not None
    shown = "".join(each.text or "" for each in root.iter("failure"))
    assert "its neighbour's" in shown
    assert "draw(a, b)" in shown


def test_sarif_has_what_the_standard_requires() -> None:
    document = json.loads(render("sarif"))
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("sgl-npu-patch", __version__)
    rules = driver["rules"]
    assert [rule["id"] for rule in rules] == [r.id for r in RESULTS]
    for found, given in zip(run["results"], RESULTS, strict=True):
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"] == given.id
        assert visible(given.message) in found["message"]["text"]
        assert found["level"] == ("error" if given.verdict == "fail" else "none")
    (place,) = run["results"][1]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "fork/python/sglang/srt/a%20b.py"},
        "region": {"startLine": 7},
    }
    assert "region" not in run["results"][0]["locations"][0]["physicalLocation"]
    assert "locations" not in run["results"][2]
