"""Judge a bounded, seeded run of mutants; the command judges many more."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import PurePosixPath
from random import Random

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.text.newer_syntax import outline_with_libcst
from sgl_npu_patch.engine.text.source import read_source
from tests.fuzz.mutants import anchored, judge, judge_files, seam_files

VERSIONS = ("0.5.3.post2", "0.5.12.post1")
MUTANTS = 40


@pytest.mark.parametrize("version", VERSIONS)
def test_mutants_are_patched_rightly_or_refused(version: str) -> None:
    verdicts = [judge(version, Random(f"sample {n}"))[0] for n in range(MUTANTS)]
    problems = [verdict.problem for verdict in verdicts if verdict.problem]
    assert not problems, problems[0]
    fair = [verdict for verdict in verdicts if verdict.fair]
    refused = [verdict.reason for verdict in fair if not verdict.accepted]
    assert len(refused) <= 0.05 * len(fair), refused


def test_deep_expressions_are_a_conflict() -> None:
    version = "0.5.12.post1"
    files = seam_files(version)
    path = next(path for path in files if path.name == "sampler.py")
    deep = files[path].replace(b"num_samples=1", b"num_samples=" + b"-" * 900 + b"1", 1)
    assert deep != files[path]
    verdict = judge_files({**files, path: deep}, path, anchored(version)[path])
    assert not verdict.problem
    assert not verdict.accepted
    assert "nested" in verdict.reason


PROGRAM = """
from pathlib import PurePosixPath
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.text.source import read_source
opening, closing, depth = {opening!r}, {closing!r}, {depth}
text = "x = " + opening * depth + "1" + closing * depth + "\\ntype Y = int\\n"
try:
    read_source(PurePosixPath("a.py"), text.encode())
except Refused as refusal:
    print(refusal)
"""


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("[", "]"), ("{", "}"), ("f(", ")")])
@pytest.mark.parametrize("depth", [2000, 20_000])
def test_nested_brackets_do_not_reach_libcst(opening: str, closing: str, depth: int) -> None:
    """libcst dies of a segmentation fault on these, so they are judged in another process."""
    program = PROGRAM.format(opening=opening, closing=closing, depth=depth)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "does not parse" in done.stdout


def test_a_line_of_many_operators_does_not_reach_libcst() -> None:
    """Its parser takes seconds for 2,500 of them, a minute in a wrong call."""
    for count, message in ((10, None), (2_500, "does not parse")):
        text = "x = " + "1+" * count + "1\n"
        outlined = outline_with_libcst(PurePosixPath("a.py"), text, SyntaxError("newer"))
        with pytest.raises(Refused, match=message) if message else nullcontext():
            assert [block.name for block in outlined] == ["x"]


def test_brackets_that_are_not_deep_are_read() -> None:
    text = "x = " + "(" * 90 + "1" + ")" * 90 + "\n"
    assert read_source(PurePosixPath("a.py"), text.encode()).binds("x")
    with pytest.raises(Refused):
        read_source(PurePosixPath("a.py"), text.replace(")", "", 1).encode())
