"""Print results as JUnit XML, which continuous integration servers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.plan import Outcome
from sgl_npu_patch.reports.checks import by_seam, failure_lines
from sgl_npu_patch.reports.matrix_document import Document, Matrix, Tree, read_matrix, said
from sgl_npu_patch.reports.plain import visible
from sgl_npu_patch.reports.text import evidence_lines
from sgl_npu_patch.verify.results import Result

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


def render_junit(results: Sequence[Result], name: str) -> str:
    """Give one test suite a seam and one test case a check.

    Args:
        name: names the tree.
    """
    return _document(
        name,
        [
            _suite(seam, [_check(result, f"sgl_npu_patch.{seam}") for result in group])
            for seam, group in by_seam(results)
        ],
    )


def render(document: Document) -> str:
    """Give one test suite a tree of `matrix`, and one test case a seam and a check.

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
    return str(document.tostring().decode("utf-8"))


def _suite(name: str, cases: Sequence[TestCase]) -> TestSuite:
    from junitparser import TestSuite

    suite: Any = TestSuite(_plain(name))
    for case in cases:
        suite.add_testcase(case)
    return suite


def _tree(matrix: Matrix, tree: Tree) -> TestSuite:
    from junitparser import Error, Skipped

    cases = []
    if tree.error:
        end = Skipped if matrix.known(tree.name) else Error
        cases.append(_case("tree", tree.name, end(_plain(tree.error), "not judged")))
    cases += [_seam(matrix, tree, outcome) for outcome in tree.outcomes]
    cases += [_check(result, tree.name) for result in tree.results]
    return _suite(tree.name, cases)


def _seam(matrix: Matrix, tree: Tree, outcome: Outcome) -> TestCase:
    from junitparser import Failure, Skipped

    told = ": ".join(part for part in (said(outcome), outcome.reason) if part)
    news = [str(c) for c in matrix.changes if (c.name, c.seam) == (tree.name, outcome.seam)]
    if news or (outcome.status == "conflict" and not matrix.known(tree.name, outcome.seam)):
        end = Failure(_plain("; ".join([told, *news])), outcome.status)
        if outcome.evidence is not None:
            end.text = _plain("\n".join(evidence_lines(outcome.seam, outcome.evidence)))
    elif outcome.status in ("conflict", "withheld", "not-needed"):
        end = Skipped(_plain(told), outcome.status)
    else:
        end = None
    case = _case(outcome.seam, tree.name, end)
    case.system_out = _plain("\n".join([told, *outcome.gaps, *map(str, outcome.sites)]))
    return case


def _check(result: Result, classname: str) -> TestCase:
    from junitparser import Failure, Skipped

    if result.verdict == "fail":
        failure = Failure(_plain(result.message), result.kind)
        failure.text = _plain("\n".join(failure_lines(result)))
        return _case(result.id, classname, failure)
    if result.verdict == "not-applicable":
        return _case(result.id, classname, Skipped(_plain(result.message)))
    return _case(result.id, classname, None)


def _case(name: str, classname: str, end: Any) -> TestCase:
    from junitparser import TestCase

    case: Any = TestCase(_plain(name), classname=_plain(classname))
    if end is not None:
        case.result = [end]
    return case


def _plain(text: str) -> str:
    """Leave out what XML has no way to write."""
    return visible(text, "\t\n")
