"""Bring every subset of upstream's own seams from 0.5.13 into 0.5.12.post1."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from itertools import chain, combinations

import pytest

from sgl_npu_patch.engine.plan import Plan
from tests.upstream.behaviour import check_behaviour
from tests.upstream.edited import (
    COMMON,
    NATIVE_OPS,
    OPS,
    SAMPLER,
    SERVER_ARGS,
    Files,
    cut,
    edit,
    judge,
    result,
    sources,
    statuses,
    take,
)
from tests.upstream.fixtures import (
    CHOICES,
    ENABLE,
    FILTERED,
    HANDLER,
    RADIX,
)
from tests.upstream.program import SEAMS

OLD, NEW = "0.5.12.post1", "0.5.13"
SAMPLED = 4
SEED = 21197


def statement_with(function: str, name: str) -> str:
    """Return the one statement of a method that calls a function of that name."""
    lines = function.splitlines(keepends=True)
    parsed = ast.parse("class _:\n" + function)
    found = [
        node
        for node in ast.walk(parsed)
        if isinstance(node, ast.Assign | ast.Expr | ast.Return)
        and re.search(rf"\b{name}\(", ast.unparse(node))
    ]
    (statement,) = found
    assert statement.end_lineno is not None
    return "".join(lines[statement.lineno - 2 : statement.end_lineno - 1])


def statement_between(text: str, start: str, end: str) -> str:
    """Return whole lines of a function, up to a text that does not belong to them."""
    first = text.index(start)
    return text[first : text.index(end, first)]


def backend_lists(files: Files, given: Files) -> None:
    take(files, given, SERVER_ARGS, CHOICES, "assignment")


def radix_cache(files: Files, given: Files) -> None:
    take(files, given, SERVER_ARGS, RADIX, "assignment")


def sampling_backend(files: Files, given: Files) -> None:
    start, end = "            # Check sampling backend\n", "            is_deepseek_model = False"
    pair = [statement_between(cut(f, SERVER_ARGS, HANDLER), start, end) for f in (files, given)]
    edit(files, SERVER_ARGS, (pair[0], pair[1]))


def device_dispatch(files: Files, given: Files) -> None:
    take(files, given, COMMON, "get_dispatch_device_backend")


def batch_invariant(files: Files, given: Files) -> None:
    take(files, given, OPS, ENABLE)
    (guarded,) = re.findall(
        r"^_is_npu = .*\nif _is_npu:\n(?: .*\n)+", given[OPS].decode(), re.MULTILINE
    )
    (line,) = re.findall(r"^from .* import is_npu\n", given[OPS].decode(), re.MULTILINE)
    edit(files, OPS, ("\nimport torch\n", f"\nimport torch\n{line}{guarded}"))
    files[NATIVE_OPS] = given[NATIVE_OPS]


def sampler(files: Files, given: Files) -> None:
    call = "_forward_ascend_backend"
    pair = [statement_with(cut(f, SAMPLER, "forward"), call) for f in (files, given)]
    edit(files, SAMPLER, (pair[0], pair[1]))
    for name in (call, "_sample_from_logits", FILTERED, "multinomial_with_seed"):
        take(files, given, SAMPLER, name)


TAKE: dict[str, Callable[[Files, Files], None]] = {
    "backend_lists": backend_lists,
    "radix_cache": radix_cache,
    "sampling_backend": sampling_backend,
    "device_dispatch": device_dispatch,
    "batch_invariant": batch_invariant,
    "sampler": sampler,
}
SUBSETS = tuple(chain.from_iterable(combinations(TAKE, count) for count in range(len(TAKE) + 1)))


def expected(taken: tuple[str, ...]) -> dict[str, str]:
    """Return the statuses: what was taken is upstream where its form has no gap."""
    whole = {"backend_lists", "sampling_backend", "device_dispatch"}
    if "batch_invariant" not in taken:
        # Beside upstream's mode, DeepSeek models are accepted as well.
        whole.add("radix_cache")
    return {seam: "upstream" if seam in whole.intersection(taken) else "pending" for seam in SEAMS}


def brought(taken: tuple[str, ...]) -> Files:
    """Return the files of the older release with those seams of the newer one."""
    files, given = sources(OLD), sources(NEW)
    for seam in taken:
        TAKE[seam](files, given)
    return files


FEW = tuple(taken for taken in SUBSETS if len(taken) in (0, 1, len(TAKE) - 1, len(TAKE)))


@pytest.mark.parametrize(
    "subsets", [FEW, pytest.param(SUBSETS, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_every_subset_has_its_statuses(subsets: tuple[tuple[str, ...], ...]) -> None:
    assert len(SUBSETS) == 2 ** len(TAKE)
    for taken in subsets:
        files = brought(taken)
        plan = judge(files)
        assert statuses(plan) == expected(taken), taken
        check_untouched(taken, files, plan)


def check_untouched(taken: tuple[str, ...], files: Files, plan: Plan) -> None:
    """What is upstream's stays as it is, byte for byte; `judge` ran a second time already."""
    after = result(files, plan)
    pieces = {
        "backend_lists": (SERVER_ARGS, CHOICES, "assignment"),
        "radix_cache": (SERVER_ARGS, RADIX, "assignment"),
        "device_dispatch": (COMMON, "get_dispatch_device_backend", "function"),
    }
    for seam, (path, name, kind) in pieces.items():
        same = cut(after, path, name, kind) == cut(files, path, name, kind)  # type: ignore[arg-type]
        assert same is (seam in taken), (taken, seam)
    assert after.get(NATIVE_OPS) == files.get(NATIVE_OPS)


# Those with one half of what launch_guards stands on, and a few by seed.
SAMPLE = [("batch_invariant",), ("sampler",), *random.Random(SEED).sample(SUBSETS[7:-1], SAMPLED)]


@pytest.mark.parametrize("taken", SAMPLE[:2], ids="+".join)
def test_half_of_what_launch_guards_stands_on_behaves(taken: tuple[str, ...]) -> None:
    check_behaviour(OLD, brought(taken), expected(taken))


@pytest.mark.slow
@pytest.mark.parametrize("taken", SAMPLE[2:], ids="+".join)
def test_a_subset_behaves(taken: tuple[str, ...]) -> None:
    check_behaviour(OLD, brought(taken), expected(taken))
