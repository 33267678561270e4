"""Print results as JUnit XML, which continuous integration servers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.model import Outcome, Result
from sgl_npu_patch.reports import conflicts
from sgl_npu_patch.reports.checks_text import by_seam, failure_lines
from sgl_npu_patch.reports.codec import Document, Tree, read_tree
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.matrix import Matrix, read_matrix
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.statuses import said

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


def render_checks(document: Document, target: Target) -> str:
    """Return one test suite a seam and one test case a check."""
    tree = read_tree(document)
    return _document(
        f"sgl-npu-patch verify {tree.place}",
        [
            _suite(seam, [_check(result, f"sgl_npu_patch.{seam}") for result in group])
            for seam, group in by_seam(tree.results)
        ],
    )


def render_matrix(document: Document, target: Target) -> str:
    """Return one test suite a tree of `matrix`, and one test case a seam and a check.

    A conflict that the baseline has is skipped; what differs from the baseline fails.
    """
    matrix = read_matrix(document)
    return _document("sgl-npu-patch matrix", [_tree(matrix, tree) for tree in matrix.trees])


def _document(name: str, suites: Sequence[TestSuite]) -> str:
    from junitparser import JUnitXml

    document: Any = JUnitXml(_plain(name))
    for suite in suites:
        document.add_testsuite(suite)
    document.update_statistics()
    return f"{document.tostring().decode('utf-8').rstrip()}\n"


def _suite(name: str, cases: Sequence[TestCase]) -> TestSuite:
    from junitparser import TestSuite

    suite = TestSuite(_plain(name))
    add: Any = suite.add_testcase
    for case in cases:
        add(case)
    return suite


def _tree(matrix: Matrix, tree: Tree) -> TestSuite:
    from junitparser import Error, Failure, Skipped

    news = {change.key: str(change) for change in matrix.changes if change.name == tree.name}
    cases = []
    if tree.error:
        end = Skipped if matrix.known(tree.name) else Error
        told = "; ".join([tree.error, *filter(None, [news.pop("", "")])])
        cases.append(_case("tree", tree.name, end(_plain(told), "not examined")))
    for outcome in tree.outcomes:
        known = matrix.known(tree.name, outcome.seam)
        cases.append(_seam(tree, outcome, known, news.pop(outcome.seam, "")))
    for result in tree.results:
        known = matrix.known(tree.name, f"check {result.id}")
        cases.append(_check(result, tree.name, known, news.pop(f"check {result.id}", "")))
    for key, told in news.items():
        cases.append(_case(key or "tree", tree.name, Failure(_plain(told), "new")))
    return _suite(tree.name, cases)


def _seam(tree: Tree, outcome: Outcome, known: bool, news: str) -> TestCase:
    from junitparser import Failure, Skipped

    told = ": ".join(part for part in (said(outcome), outcome.reason) if part)
    end: Any = None
    if news or (outcome.status == "conflict" and not known):
        end = Failure(_plain(f"{told}; {news}" if news else told), outcome.status)
        if outcome.evidence is not None:
            lines = [conflicts.title([outcome.seam]), *conflicts.evidence_lines(outcome.evidence)]
            end.text = _plain("\n".join(lines))
    elif outcome.status in ("conflict", "withheld", "not-needed"):
        end = Skipped(_plain(told), outcome.status)
    case = _case(outcome.seam, tree.name, end)
    case.system_out = _plain("\n".join([told, *outcome.gaps, *map(str, outcome.sites)]))
    return case


def _check(result: Result, classname: str, known: bool = False, news: str = "") -> TestCase:
    from junitparser import Failure, Skipped

    if news or (result.verdict == "fail" and not known):
        told = f"{result.message}; {news}" if news else result.message
        failure = Failure(_plain(told), result.kind)
        failure.text = _plain("\n".join(failure_lines(result)))
        return _case(result.id, classname, failure)
    if result.verdict != "pass":
        return _case(result.id, classname, Skipped(_plain(result.message), result.verdict))
    return _case(result.id, classname, None)


def _case(name: str, classname: str, end: Any) -> TestCase:
    from junitparser import TestCase

    case = TestCase(_plain(name), classname=_plain(classname))
    if end is not None:
        case.result = [end]
    return case


def _plain(text: str) -> str:
    """Leave out what XML has no way to write."""
    return visible(text, "\t\n")
