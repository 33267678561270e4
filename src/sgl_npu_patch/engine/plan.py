"""Judge every seam on a tree, without writing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.errors import AnchorError, Located, Site, TooOld, UsageError
from sgl_npu_patch.engine.model import SETTLED, ChangeSet, Evidence, Outcome, Status
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.seam import NotNeeded, Seam
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.trees.directory import SourceTree, full_name
from sgl_npu_patch.engine.view import View

if TYPE_CHECKING:
    import libcst as cst


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the outcomes of a series on a tree and the change set that follows from them.

    The change set is empty if any seam is in conflict. ``warnings`` are for the user.
    """

    outcomes: tuple[Outcome, ...]
    changes: ChangeSet
    overlay: Overlay
    series: Mapping[str, Seam]
    warnings: tuple[str, ...] = ()

    @property
    def conflicts(self) -> tuple[Outcome, ...]:
        """List the outcomes that are conflicts."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "conflict")

    def as_applied(self) -> Plan:
        """Return the plan as it reads once its changes are written."""
        outcomes = tuple(
            replace(o, status="applied") if o.status == "pending" else o for o in self.outcomes
        )
        return replace(self, outcomes=outcomes)

    @property
    def incomplete(self) -> bool:
        """Report whether anything is withheld or left open."""
        return any(o.status == "withheld" or o.gaps for o in self.outcomes)


def require_marker(tree: SourceTree, overlay: Overlay) -> None:
    """Refuse a tree that is too old to be patched.

    Raises:
        TooOld: no file of the package mentions the project's marker.
    """
    if not overlay.mentioning(tree.project.marker):
        raise TooOld(full_name(tree), tree.project.too_old.format(package=tree.package))


def check_known(series: Mapping[str, Seam], names: Iterable[str]) -> None:
    """Insist that names are those of seams.

    Raises:
        UsageError: one is not.
    """
    unknown = sorted(set(names) - set(series))
    if unknown:
        raise UsageError(f"no such seam: {', '.join(unknown)}; seams are {', '.join(series)}")


def check_selection(series: Mapping[str, Seam], selected: Iterable[str]) -> tuple[str, ...]:
    """Return the chosen seams in series order.

    Raises:
        UsageError: a name is unknown, or a chosen seam needs one that is not.
    """
    chosen = set(selected)
    check_known(series, chosen)
    for name in series:
        missing = [need for need in series[name].needs if need not in chosen]
        if name in chosen and missing:
            raise UsageError(
                f"seam {name} needs {', '.join(missing)}: choose both, or neither of them"
            )
    return tuple(name for name in series if name in chosen)


def choose(
    series: Mapping[str, Seam], only: Iterable[str] = (), skip: Iterable[str] = ()
) -> tuple[str, ...]:
    """Choose the seams to judge, in series order: those of ``only``, or all, without ``skip``.

    Raises:
        UsageError: a name is unknown, nothing is left, or a chosen seam needs one that is not.
    """
    skipped = set(skip)
    check_known(series, skipped)
    selected = check_selection(series, [name for name in (only or series) if name not in skipped])
    if not selected:
        raise UsageError("--only and --skip leave no seam")
    return selected


def make_plan(
    tree: SourceTree | Overlay, series: Mapping[str, Seam], selected: Iterable[str] | None = None
) -> Plan:
    """Judge the chosen seams in order, each on an overlay of its own.

    Every seam is tried even after a conflict, so that one run reports everything.

    Raises:
        Refused: a file cannot be read or parsed, or the tree is too old.
        UsageError: the choice of seams breaks a requirement on this tree.
    """
    overlay = tree.fork() if isinstance(tree, Overlay) else Overlay(tree)
    require_marker(overlay.tree, overlay)
    chosen = check_selection(series, series if selected is None else selected)
    outcomes: dict[str, Outcome] = {}
    for name in chosen:
        attempt = overlay.fork()
        outcomes[name] = _judge(name, series[name], View(attempt, []))
        if outcomes[name].status == "pending":
            overlay.merge(attempt)
    _require(series, outcomes, overlay)
    found = tuple(outcomes.values())
    blocked = any(outcome.status == "conflict" for outcome in found)
    changes = ChangeSet(()) if blocked else overlay.changes()
    return Plan(found, changes, overlay, series)


def _judge(name: str, seam: Seam, view: View) -> Outcome:
    try:
        return _settle(name, seam, view)
    except AnchorError as error:
        return _conflict(name, error)
    except (RecursionError, MemoryError):
        # libcst and this tool descend one call a level; Python's own parser goes deeper.
        return _conflict(
            name,
            AnchorError(
                sought=view.last.symbol if view.last else "what the seam edits",
                expected="expressions and statements nested less deeply than Python can recurse",
                found="deeper ones",
                where=(view.last,) if view.last else (),
                action="break up the deeply nested expression",
            ),
        )


def _conflict(name: str, error: AnchorError) -> Outcome:
    return Outcome(
        name,
        "conflict",
        sites=error.where,
        reason=f"expected {error.expected}, found {error.found}",
        evidence=Evidence(
            error.sought, error.expected, error.found, error.where, error.nearest, error.action
        ),
    )


def _settle(name: str, seam: Seam, view: View) -> Outcome:
    verdict = seam.premise(view)
    if verdict is not None:
        status: Status = "not-needed" if isinstance(verdict, NotNeeded) else "withheld"
        return Outcome(name, status, verdict.sites, verdict.reason)
    native = seam.is_upstream(view)
    if native is not None:
        return Outcome(name, "upstream", (native,), gaps=seam.gaps(view))
    present: list[Site] = []
    outdated = False
    was_here, project = has_our_header(view), view.overlay.tree.project
    for target in seam.targets(view):
        with Located(target.spot.site):
            node = _refreshed(target.spot.node, project) if was_here else target.spot.node
            outdated |= node is not target.spot.node
            edited = target.edit(node)
            if edited is target.spot.node:
                present.append(target.spot.site)
            else:
                view.replace(target.spot, edited)
    for module in seam.vendors:
        outdated |= _place(module, view, present)
    if view.sites:
        gaps = seam.left_open(view)
        return Outcome(name, "pending", tuple(view.sites), gaps=gaps, outdated=outdated)
    if seam.adapted is None or (was_here and not seam.adapted(view)):
        return Outcome(name, "already", tuple(present), gaps=seam.left_open(view))
    return Outcome(name, "upstream", tuple(present), gaps=seam.gaps(view))


def _refreshed(node: cst.CSTNode, project: Project) -> cst.CSTNode:
    from sgl_npu_patch.engine.refresh import refresh

    return refresh(node, project.templates)


def has_our_header(view: View) -> bool:
    """Report whether this tool has vendored a module into the tree before."""
    tree = view.overlay.tree
    return any(
        vendor.recognise(
            tree.project, module, tree.read(view.vendor_folder / f"{module}.py")
        ).version
        for module in tree.project.vendored
    )


def _place(module: str, view: View, present: list[Site]) -> bool:
    """Add or refresh a vendored module; report whether an older one was replaced."""
    project = view.overlay.tree.project
    path = view.vendor_folder / f"{module}.py"
    data = view.overlay.read(path)
    found = vendor.recognise(project, module, data)
    site = Site(path, 0, module)
    if found.state in ("missing", "older"):
        view.overlay.write(path, vendor.render(project, module))
        view.sites.append(site)
        return found.state == "older"
    if found.state == "current":
        present.append(site)
        return False
    said = {
        "newer": (f"one that version {found.version} wrote", "use that version of sgl-npu-patch"),
        "edited": (
            f"one that version {found.version} wrote and somebody edited since",
            "move the edit elsewhere, delete the file and apply again",
        ),
        "foreign": ("a file of the same name that this tool did not write", "move it away"),
    }
    what, action = said[found.state]
    edit = vendor.first_edit(project, module, data or b"") if found.state == "edited" else ""
    if edit:
        what += f", {excerpt(edit)}"
    raise AnchorError(
        sought=f"{module}.py",
        expected="no file, or an unmodified one that this tool wrote",
        found=what,
        where=(site,),
        action=action,
    )


def _require(series: Mapping[str, Seam], outcomes: dict[str, Outcome], overlay: Overlay) -> None:
    for name, outcome in outcomes.items():
        seam = series[name]
        for need in seam.needs_if_defined:
            if need not in outcomes and outcome.status == "pending":
                other = _judge(need, series[need], View(overlay.fork(), []))
                if other.status in ("pending", "conflict"):
                    raise UsageError(f"seam {name} needs {need} on this tree: choose both")
        for need in (*seam.needs, *seam.needs_if_defined):
            other_status = outcomes[need].status if need in outcomes else None
            if outcome.status == "pending" and other_status == "conflict":
                outcomes[name] = replace(
                    outcome,
                    status="conflict",
                    reason=f"needs {need}, which is in conflict",
                    evidence=outcomes[need].evidence,
                )


def prove(plan: Plan) -> None:
    """Judge the result of a plan once more: it must leave nothing to do.

    Raises:
        AssertionError: the result is not what the plan claims.
    """
    if plan.changes.changes:
        again = make_plan(plan.overlay, plan.series, [outcome.seam for outcome in plan.outcomes])
        left = [outcome for outcome in again.outcomes if outcome.status not in SETTLED]
        if left:
            raise AssertionError(f"not seen as done after the edit: {left}")
