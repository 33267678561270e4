"""Insist that every shape that a codemod accepts occurs: in a release or in a named fixture."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from sgl_npu_patch import codemods
from sgl_npu_patch.engine.cst import edit
from sgl_npu_patch.engine.errors import Refused
from tests.refactor.__main__ import cases
from tests.refactor.project import plan_of
from tests.upstream.edited import judge, sources
from tests.upstream.test_half_patched import FIXTURES

FOLDER = Path(str(codemods.__file__)).parent

RELEASES = (
    "0.5.3rc2",
    "0.5.3.post2",
    "0.5.4.post1",
    "0.5.5.post3",
    "0.5.9",
    "0.5.11",
    "0.5.12.post1",
    "0.5.13",
    "0.5.16",
    "0.5.19",
    "0.5.23",
)
REFACTORED = {
    "handler_split": ("0.5.3.post2", "0.5.4.post1", "0.5.12.post1"),
    "early_returns": ("0.5.3.post2", "0.5.12.post1"),
    "parameters_appended": ("0.5.12.post1",),
}
_PREFIX = str(FOLDER)

# What no release and no recipe runs: a way to a refusal, or what a case in tests/codemods runs.
KEPT = {
    "__init__.py _series: return MappingProxyType({m.__name__.rpartition('.')[2]: m.SEAM "
    "for m in modules})": "runs when the package is imported",
    "_sampling.py _is_softmax: return False": "refuses what is no softmax",
    "_sampling.py _sorting: continue": "passes by statements above the sort",
    "attention_comment.py remove_claim: kept.append(statement.with_changes(leading_lines="
    "[*above, *statement.leading_lines]))": "keeps a comment above the claim",
    "attention_comment.py remove_claim: above = []": "the same",
    "batch_invariant.py _flagged_first: return False": (
        "names no gap of a native mode whose flag is set behind what may fail"
    ),
    "device_dispatch.py _before_raise: return None": "refuses an end that does not raise",
    "device_dispatch.py _before_raise: text = 'if is_npu():\\n    return \"NPU\"\\n'": (
        "a dispatch that returns in each branch"
    ),
    "hardened_operators.py _replaces: return returned.value is None": (
        "a branch of upstream's that returns"
    ),
    "hardened_radix_cache.py premise: return NotNeeded(f'{SUPPORTED} does not have \"ascend\"', "
    "(supported.site,))": "a native tree that does not claim to be ready",
    "sampling_backend.py _guard: return node": "a split handler that is patched already",
    "sampling_backend.py _keeps: return False": "an assignment outside of the branch",
    "sampler.py fit_for_npu: if name not in ('torch.no_grad', 'torch.inference_mode'):": (
        "accepts a draw under torch.no_grad"
    ),
    "sampler.py _not_compiled: if name not in ('torch.no_grad', 'torch.inference_mode'):": (
        "the same"
    ),
    "sampler.py _not_compiled: return False": "refuses other decorators",
    "sampling_backend.py _chooses: return False": "refuses other comparisons",
}


class Lines:
    """Write down the lines of the codemods that run while it is entered."""

    def __init__(self) -> None:
        self.ran: dict[str, set[int]] = defaultdict(set)
        self._before: Any = None

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(_PREFIX):
            return None
        self.ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line


def shapes(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run where a shape is accepted: refusals are left out."""
    for statement in body:
        if isinstance(statement, ast.Raise):
            return
        inner = [
            block
            for name in ("body", "orelse", "handlers", "finalbody")
            if isinstance(block := getattr(statement, name, None), list)
        ]
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement
        for block in inner:
            if not any(isinstance(each, ast.Raise) for each in block):
                yield from shapes(block)


def unfired(ran: dict[str, set[int]]) -> list[str]:
    """List the statements that did not run, by file and source."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for statement in shapes(function.body):
                    lines = range(statement.lineno, (statement.end_lineno or 0) + 1)
                    if not ran[str(path)].intersection(lines) and not _is_text(statement):
                        text = ast.unparse(statement).partition("\n")[0]
                        found.append(f"{path.name} {function.name}: {text}")
    return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@cache
def everything() -> dict[str, set[int]]:
    """Judge a release of every shape, and every fixture."""
    edit.block.cache_clear()
    with Lines() as lines:
        for version in RELEASES:
            judge(sources(version))
            judge(sources(version), codemods.SERIES)
        for fixture in FIXTURES.values():
            files = sources(fixture.version)
            fixture.recipe(files)
            judge(files)
        for kind, versions in REFACTORED.items():
            for version in versions:
                for case in cases(kind, version, 4, seed=7):
                    with suppress(Refused):
                        plan_of(case.files)
    return lines.ran


def test_every_shape_occurs() -> None:
    assert set(unfired(everything())) == set(KEPT)
