"""Print the results of checks as JUnit XML, which continuous integration servers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgl_npu_patch.reports.checks import by_seam, failure_lines
from sgl_npu_patch.verify.results import Result


def render_junit(results: Sequence[Result], name: str) -> str:
    """Give one test suite a seam and one test case a check.

    Args:
        name: names the tree.
    """
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    document: Any = JUnitXml(name)
    for seam, group in by_seam(results):
        suite = TestSuite(seam)
        for result in group:
            case = TestCase(result.id, classname=f"sgl_npu_patch.{seam}")
            if result.verdict == "fail":
                failure = Failure(_plain(result.message), result.kind)
                failure.text = _plain("\n".join(failure_lines(result)))
                case.result = [failure]
            elif result.verdict == "not-applicable":
                case.result = [Skipped(_plain(result.message))]
            suite.add_testcase(case)
        document.add_testsuite(suite)
    document.update_statistics()
    return str(document.tostring().decode("utf-8"))


def _plain(text: str) -> str:
    """Leave out what XML has no way to write."""
    return "".join(c if c in "\t\n\r" or c >= " " else "\N{REPLACEMENT CHARACTER}" for c in text)
