"""Print a plan as the one JSON document that scripts read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sgl_npu_patch import __version__
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.version import package_version

if TYPE_CHECKING:
    from sgl_npu_patch.engine.model import Outcome
    from sgl_npu_patch.engine.plan import Plan

SCHEMA = 1
NOT_JUDGED: dict[str, list[Any]] = {"outcomes": [], "changed": [], "added": []}


def document(tree: SourceTree, plan: Plan | None) -> dict[str, Any]:
    """Give the document of design.md, with paths relative to the tree.

    Args:
        plan: None for a tree that could not be judged.
    """
    judged = NOT_JUDGED if plan is None else plan_document(plan)
    return about_tree(tree) | judged | {"copies": [path.as_posix() for path in tree.copies()]}


def header() -> dict[str, Any]:
    """Begin every document."""
    return {"schema": SCHEMA, "tool": {"name": "sgl-npu-patch", "version": __version__}}


def about_tree(tree: SourceTree) -> dict[str, Any]:
    """Give what a document says of the tree itself."""
    version = package_version(tree)
    return header() | {"tree": {"path": tree.label, "version": version, "revision": tree.revision}}


def plan_document(plan: Plan) -> dict[str, Any]:
    """Give what a document says of a plan, the same wherever the tree stands."""
    return {
        "outcomes": [_outcome(outcome) for outcome in plan.outcomes],
        "changed": [path.as_posix() for path in plan.changes.changed],
        "added": [path.as_posix() for path in plan.changes.added],
    }


def render_json(content: object) -> str:
    """Print a document with stable key order, in ASCII: any stream and any path will do."""
    return json.dumps(content, indent=2)


def render_rows(content: Mapping[str, Any]) -> str:
    """Print a document like `render_json`, each element of a list that it holds on one line."""
    # What takes long to print is the same for most trees.
    printed: dict[tuple[int, ...], str] = {}

    def row(each: Mapping[str, Any]) -> str:
        lists = {key: value for key, value in each.items() if isinstance(value, list)}
        shared = tuple(map(id, lists.values()))
        if shared not in printed:
            printed[shared] = json.dumps(lists)[1:-1]
        own = json.dumps({key: value for key, value in each.items() if key not in lists})[1:-1]
        return ", ".join(filter(None, (own, printed[shared])))

    parts = []
    for key, value in content.items():
        rows = [f"\n    {{{row(each)}}}" for each in value] if isinstance(value, list) else []
        whole = f"[{','.join(rows)}\n  ]" if rows else json.dumps(value)
        parts.append(f"\n  {json.dumps(key)}: {whole}")
    return f"{{{','.join(parts)}\n}}"


def _outcome(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seam": outcome.seam,
        "status": outcome.status,
        "sites": [site_document(site) for site in outcome.sites],
        "reason": outcome.reason,
        "gaps": list(outcome.gaps),
        "outdated": outcome.outdated,
    }
    if outcome.evidence is not None:
        evidence = outcome.evidence
        found["evidence"] = {
            "sought": evidence.sought,
            "expected": evidence.expected,
            "found": evidence.found,
            "where": [site_document(site) for site in evidence.where],
            "nearest": evidence.nearest,
            "action": evidence.action,
        }
    return found


def site_document(site: Site) -> dict[str, Any]:
    """Give one place."""
    return {"path": site.path.as_posix(), "line": site.line, "symbol": site.symbol}
