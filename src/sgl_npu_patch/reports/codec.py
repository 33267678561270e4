"""Write every document that `--format json` prints, and read it back for the other reports.

Reports are made from the document, not from the run: what one of them says, the JSON says too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypedDict

from sgl_npu_patch import __version__
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Evidence, Outcome, Result
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.version import package_version
from sgl_npu_patch.reports.plain import visible

if TYPE_CHECKING:
    from sgl_npu_patch.audit.baseline import Row
    from sgl_npu_patch.engine.plan import Plan
    from sgl_npu_patch.kit.doctor import Examination

SCHEMA = 1
NOT_JUDGED: dict[str, list[Any]] = {"outcomes": [], "changed": [], "added": []}
"""What a document says of a tree that could not be judged."""


class SiteDocument(TypedDict):
    """One place in a tree."""

    path: str
    line: int
    symbol: str


class TreeName(TypedDict):
    """The tree as the user named it."""

    path: str
    version: str | None
    revision: str | None


class _TreeDocument(TypedDict):
    schema: int
    tool: dict[str, str]
    tree: TreeName
    outcomes: list[dict[str, Any]]
    changed: list[str]
    added: list[str]
    copies: list[str]


class TreeDocument(_TreeDocument, total=False):
    """What was found out about one tree; the last keys are there where they were asked for."""

    name: str
    error: dict[str, str]
    gaps: list[dict[str, str]]
    checks: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    total: int
    diff: str
    wheel: str | None


Document = Mapping[str, Any]
"""Any document, read back from JSON perhaps."""


@dataclass(frozen=True, slots=True)
class OpenGap:
    """A gap that a seam leaves open: what it means, and what closes it or is to be done."""

    name: str
    seam: str
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a document says of one tree.

    Attributes:
        name: the tree as the user asked for it, on one line.
        place: its path and revision.
        error: why it could not be judged; there are no outcomes then.
        gaps: explains those of the outcomes.
        results: of the checks, where they were asked for.
        diff: what `apply` would change.
    """

    name: str
    place: str
    version: str
    revision: str
    error: str
    outcomes: tuple[Outcome, ...]
    gaps: tuple[OpenGap, ...]
    results: tuple[Result, ...]
    diff: str

    @property
    def title(self) -> str:
        """Name the tree in a headline."""
        return f"SGLang {self.version or 'of unknown version'} in {self.place}"

    @property
    def failures(self) -> tuple[Result, ...]:
        """List the checks that fail."""
        return tuple(result for result in self.results if result.verdict == "fail")

    def outcome(self, seam: str) -> Outcome | None:
        """Return the outcome of a seam, None where it was not judged."""
        return next((each for each in self.outcomes if each.seam == seam), None)


def header() -> dict[str, Any]:
    """Return what every document begins with."""
    return {"schema": SCHEMA, "tool": {"name": "sgl-npu-patch", "version": __version__}}


def about_tree(tree: SourceTree) -> dict[str, Any]:
    """Return what a document says of the tree itself."""
    name = TreeName(path=tree.label, version=package_version(tree), revision=tree.revision)
    return header() | {"tree": name}


def tree_document(
    tree: SourceTree, plan: Plan | None, results: Sequence[Result] | None = None
) -> TreeDocument:
    """Return the document of one tree, with paths relative to it.

    Args:
        plan: None for a tree that could not be judged.
        results: of the checks, None if none were asked for.
    """
    found: dict[str, Any] = {**NOT_JUDGED} if plan is None else plan_document(plan)
    checks = {} if results is None else {"checks": check_documents(results)}
    copies = {"copies": [path.as_posix() for path in tree.copies()]}
    document: TreeDocument = {**about_tree(tree), **found, **copies, **checks}  # type: ignore[typeddict-item]
    return document


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return what a document says of a plan, the same wherever the tree stands."""
    return {
        "outcomes": [_write_outcome(outcome) for outcome in plan.outcomes],
        "changed": [path.as_posix() for path in plan.changes.changed],
        "added": [path.as_posix() for path in plan.changes.added],
        "gaps": [_explain(name) for outcome in plan.outcomes for name in outcome.gaps],
    }


def _explain(name: str) -> dict[str, str]:
    from sgl_npu_patch.codemods.upstream.gaps import GAPS

    gap = GAPS[name]
    return {"gap": name, "seam": gap.seam, "meaning": gap.meaning, "remedy": gap.remedy}


def check_documents(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the list ``checks`` of a document."""
    return [
        {
            "id": result.id,
            "seam": result.seam,
            "kind": result.kind,
            "verdict": result.verdict,
            "message": result.message,
            "site": write_site(result.site) if result.site is not None else None,
            "meaning": result.meaning,
            "expected": result.expected,
            "found": result.found,
            "code": result.code,
            "action": result.action,
            "gap": result.gap,
            "measured": result.measured,
        }
        for result in results
    ]


def audit_document(tree: SourceTree, rows: Sequence[Row], *, show_all: bool) -> TreeDocument:
    """Return the document of an audit, with the list ``calls`` of all calls or of findings."""
    document = tree_document(tree, None)
    document["calls"] = [
        {
            "kind": row.call.kind,
            "operator": row.call.name,
            "verdict": row.call.verdict,
            "finding": row.is_finding,
            "known": row.known,
            "why": row.call.operator.why,
            "covered_by": row.call.operator.covered_by,
            "source": row.call.operator.source,
            "site": write_site(row.call.site),
        }
        for row in rows
        if show_all or row.is_finding
    ]
    document["total"] = len(rows)
    return document


def bisect_document(
    changes: Iterable[Mapping[str, Any]], remarks: Iterable[str], commits: int, judged: int
) -> dict[str, Any]:
    """Return the document of a search.

    Args:
        commits: how many there are between the two ends, ``judged`` of which were judged.
    """
    found = {"changes": list(changes), "remarks": list(remarks)}
    return header() | found | {"commits": commits, "judged": judged}


def machine_document(found: Examination, tree: SourceTree | None) -> dict[str, Any]:
    """Return the document of `doctor`; ``tree`` is null where none was asked about."""
    about = header() | {"tree": None} if tree is None else about_tree(tree)
    return about | {
        "able": found.able,
        "chip": found.chip,
        "versions": found.versions,
        "facts": [asdict(fact) for fact in found.facts],
    }


def _write_outcome(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seam": outcome.seam,
        "status": outcome.status,
        "sites": [write_site(site) for site in outcome.sites],
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
            "where": [write_site(site) for site in evidence.where],
            "nearest": evidence.nearest,
            "action": evidence.action,
        }
    return found


def write_site(site: Site) -> SiteDocument:
    """Return one place."""
    return {"path": site.path.as_posix(), "line": site.line, "symbol": site.symbol}


def read_tree(document: Document, read: dict[int, tuple[Outcome, ...]] | None = None) -> Tree:
    """Read a document of one tree.

    Args:
        read: the lists of outcomes that were read already, by identity: most commits of a range
            share what was found out about one of them.
    """
    tree = document.get("tree") or {}
    path, version, revision = (tree.get(key) or "" for key in ("path", "version", "revision"))
    outcomes = document.get("outcomes", ())
    known = {} if read is None else read
    explained = {each["gap"]: each for each in document.get("gaps", ())}
    if id(outcomes) not in known:
        known[id(outcomes)] = tuple(_read_outcome(each) for each in outcomes)
    return Tree(
        name=visible(document.get("name", path)),
        place=f"{path} at {revision[:12]}" if revision else path,
        version=version,
        revision=revision,
        error=(document.get("error") or {}).get("message", ""),
        outcomes=known[id(outcomes)],
        gaps=tuple(
            _read_gap(name, outcome.seam, explained.get(name, {}))
            for outcome in known[id(outcomes)]
            for name in outcome.gaps
        ),
        results=tuple(_read_result(each) for each in document.get("checks", ())),
        diff=document.get("diff", ""),
    )


def _read_gap(name: str, seam: str, document: Document) -> OpenGap:
    return OpenGap(name, seam, document.get("meaning", ""), document.get("remedy", ""))


def _read_outcome(document: Document) -> Outcome:
    evidence = document.get("evidence")
    if evidence is not None:
        evidence = Evidence(**{**evidence, "where": _read_sites(evidence["where"])})
    return Outcome(
        document["seam"],
        document["status"],
        _read_sites(document["sites"]),
        document["reason"],
        tuple(document["gaps"]),
        document["outdated"],
        evidence,
    )


def _read_result(document: Document) -> Result:
    site = document["site"]
    return Result(**{**document, "site": None if site is None else read_site(site)})


def _read_sites(documents: Sequence[Document]) -> tuple[Site, ...]:
    return tuple(read_site(each) for each in documents)


def read_site(document: Document) -> Site:
    """Read one place."""
    return Site(PurePosixPath(document["path"]), document["line"], document["symbol"])
