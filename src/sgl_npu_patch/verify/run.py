"""Run every kind of check on one tree; the checks that execute it in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.errors import Refused, Site, Unparsable, UsageError
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.plan import Plan, make_plan
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.open import as_folder
from sgl_npu_patch.verify import static
from sgl_npu_patch.verify.findings import UNPATCHED
from sgl_npu_patch.verify.static.judged import Judged, judge

if TYPE_CHECKING:
    from sgl_npu_patch.kit.receipt import Receipt
    from sgl_npu_patch.verify.server.run import Server

SIMULATED = "2.10.0"
"""The torch_npu whose operators are simulated."""
LAYERS = "layers"
"""The group of checks that is run only when it is asked for."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """Hold the checks' results with what `status` says; no plan where a file does not parse."""

    plan: Plan | None
    results: tuple[Result, ...]

    @property
    def failed(self) -> bool:
        """Tell whether any check failed."""
        return any(result.verdict == "fail" for result in self.results)

    @property
    def lasting(self) -> bool:
        """Tell whether the same is found whenever the tree is checked."""
        return not any(result.lost for result in self.results)


def verify(
    tree: SourceTree,
    *,
    base: SourceTree | None = None,
    static_only: bool = False,
    layers: bool = False,
    server: Server | None = None,
    torch_npu: str | None = None,
    receipt: Receipt | None = None,
    only: Sequence[str] = (),
    tell: Tell = lambda text: None,
) -> Verified:
    """Run the checks on a patched tree.

    Args:
        base: the unpatched tree to compare with.
        static_only: execute nothing of the tree.
        layers: run the tree's layers on a simulated NPU whose own kernels depend on the batch.
        server: run the tree's own server on that NPU, with requests alone and together.
        torch_npu: version, wheel or folder whose operators the tree's calls must fit.
        receipt: what a kit measured on a device.
        only: ids of checks and names of seams to take, all if empty; a tree that is not patched
            fails them all, so that one result stands for all unless some are named.
        tell: is told what begins.

    Raises:
        Refused: a tree cannot be read or is too old, or torch is missing, or what a server needs.
        UsageError: ``only`` names what is neither a seam nor a check.
    """
    elsewhere = {*_static_ids(SERIES), *(name for name in only if name.startswith("server."))}
    behaves = not static_only and not (only and set(only) <= elsewhere)
    if behaves and find_spec("torch") is None:
        raise Refused(
            "torch is not installed, and the checks that execute the tree need it: install "
            "sgl-npu-patch[verify], or pass --static for the checks that do not"
        )
    if server is not None:
        from sgl_npu_patch.verify.server import run as servers

        servers.require_extra()
    tell("judging the tree")
    try:
        judged = judge(tree)
    except Unparsable as error:
        return Verified(None, tuple(_unparsable(tree, error)))
    if not only and _is_unpatched(judged.plan):
        return Verified(judged.plan, (UNPATCHED,))
    tell("static checks")
    results = static.check(judged, only)
    if base is not None:
        from sgl_npu_patch.verify import off_npu

        tell("comparison with the unpatched tree off an NPU")
        # Of the base only the files that differ are read again.
        original = judge(Overlay(base, judged.overlay.cache.for_another_tree()))
        results += off_npu.check(judged, original, only)
    if torch_npu is not None:
        tell(f"contracts with torch_npu {torch_npu}")
        contracts = import_module("sgl_npu_patch.verify.contracts")
        found: list[Result] = contracts.check(tree, torch_npu)
        results += (r for r in found if not only or {r.id, r.seam} & set(only))
    if behaves:
        tell("behaviour on a simulated NPU")
        results += _behaviour(tree, judged, base, layers=layers, only=only)
    if server is not None:
        tell("the tree's own server on a simulated NPU")
        results += servers.check(tree, only, server)
    if receipt is not None:
        from sgl_npu_patch.kit import receipt as receipts

        measured = receipts.results(receipt, tree, results)
        results = [r for r in measured if not only or {r.id, r.seam} & set(only)]
    _check_only(only, SERIES, results)
    return Verified(judged.plan, tuple(results))


def _is_unpatched(plan: Plan) -> bool:
    """Report whether nothing of the series is in a tree that it could be applied to."""
    found = {outcome.status for outcome in plan.outcomes}
    return "pending" in found and found.isdisjoint(("already", "conflict"))


def _behaviour(
    tree: SourceTree,
    judged: Judged,
    base: SourceTree | None,
    *,
    layers: bool,
    only: Sequence[str],
) -> list[Result]:
    from sgl_npu_patch.verify import isolation
    from sgl_npu_patch.verify.behaviour import GROUPS

    groups = [group for group in GROUPS if layers or group != LAYERS]
    original = as_folder(base) if base is not None else nullcontext()
    with as_folder(tree) as root, original as base_root:
        request = {
            "package": str(root / tree.package),
            "base": str(base_root / base.package) if base is not None and base_root else None,
            "left_out": dict(judged.left_out),
            "native": judged.native,
            "torch_npu": SIMULATED,
            "only": list(only),
        }
        found = isolation.run(groups, request)
    roots = [each for each in (root, base_root) if each is not None]
    return [_located(_relative(result, roots), judged) for result in found]


def _relative(result: Result, roots: Iterable[Path]) -> Result:
    """Name files as the tree does: where it was executed is of no use to who reads it."""
    texts = {name: getattr(result, name) for name in ("message", "expected", "found", "code")}
    for root in sorted(map(str, roots), key=len, reverse=True):
        texts = {name: text.replace(f"{root}{os.sep}", "") for name, text in texts.items()}
    return replace(result, **texts)


def _located(result: Result, judged: Judged) -> Result:
    """Point at what the seam edits where a check does not say where to look."""
    outcome = judged.outcomes.get(result.seam)
    if result.site is not None or outcome is None or not outcome.sites:
        return result
    return replace(result, site=outcome.sites[0])


def _unparsable(tree: SourceTree, error: Unparsable) -> list[Result]:
    """Report a file without which nothing can be checked to the seams that read it."""
    seams = _readers(tree, error) or [""]
    return [
        Result(
            id=f"{seam or 'series'}.compiles",
            seam=seam,
            kind="static",
            verdict="fail",
            meaning="Every file that the seam edits or adds compiles.",
            message=f"{error.reason}; nothing else can be checked",
            site=Site(error.path, error.line, ""),
            expected="a file that compiles",
            found=error.reason,
            action="restore the file and run sgl-npu-patch apply",
        )
        for seam in seams
    ]


def _readers(tree: SourceTree, error: Unparsable) -> list[str]:
    """List the seams that cannot be planned for lack of a file that parses."""
    found = []
    for name, seam in SERIES.items():
        try:
            make_plan(tree, {name: replace(seam, needs=(), needs_if_defined=())})
        except Unparsable as each:
            if each.path == error.path:
                found.append(name)
    return found


def _static_ids(seams: Iterable[str]) -> set[str]:
    from sgl_npu_patch.verify import off_npu

    compared = {f"{seam}.{off_npu.CHECK}" for seam in seams}
    return {*static.CHECKS, *compared, off_npu.NOWHERE_ELSE}


def _check_only(only: Sequence[str], seams: Iterable[str], results: Sequence[Result]) -> None:
    known = {*seams, *(result.id for result in results)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(
            f"no check or seam of that name ran: {', '.join(unknown)}; seams are "
            f"{', '.join(seams)}; comparisons need --base, layers need --layers, "
            "the server needs --server"
        )
