"""Print results as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sgl_npu_patch import __version__
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.reports.checks_text import failure_lines
from sgl_npu_patch.reports.codec import Document, read_site, read_tree
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.matrix import read_matrix, remarks
from sgl_npu_patch.reports.plain import visible

if TYPE_CHECKING:
    import sarif_pydantic as sarif

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_KINDS: Mapping[Verdict, str] = {
    "pass": "pass",
    "fail": "fail",
    "not-applicable": "notApplicable",
}


def render_checks(document: Document, target: Target) -> str:
    """Return one rule and one result a check.

    Code hosts take paths as relative to the root of the repository.
    """
    results = read_tree(document).results
    rules = {
        result.id: _rule(result.id, result.meaning, seam=result.seam, kind=result.kind)
        for result in results
    }
    return _document(rules, (_check(result, target.prefix) for result in results))


def render_matrix(document: Document, target: Target) -> str:
    """Return one rule a kind of trouble, and one result whatever is to be acted on in a `matrix`.

    The same trouble in several trees is one result that names them all; what the baseline has is
    a note.
    """
    import sarif_pydantic as sarif

    troubles = [remark for remark in remarks(read_matrix(document)) if remark.serious]
    rules = {each.title: _rule(each.title, each.title, seam=each.seam) for each in troubles}
    return _document(
        rules,
        (
            sarif.Result(
                rule_id=each.title,
                kind="fail",
                level=sarif.Level.NOTE if each.known else sarif.Level.ERROR,
                message=_message("\n".join([f"{each.title} on", *each.names, *each.lines])),
                locations=[_location(each.site, PurePosixPath())] if each.site else None,
                partial_fingerprints={"trouble/v1": _fingerprint(each.title, *each.lines)},
                properties={"trees": list(each.names)},
            )
            for each in troubles
        ),
    )


def render_audit(document: Document, target: Target) -> str:
    """Return one rule an operator and one result a call of it; what the baseline has is a note."""
    rules = {
        call["operator"]: _rule(call["operator"], call["why"], seam=call["covered_by"] or "")
        for call in document["calls"]
    }
    return _document(rules, (_call(call, target) for call in document["calls"]))


def _call(call: Mapping[str, Any], target: Target) -> sarif.Result:
    import sarif_pydantic as sarif

    name, site = call["operator"], read_site(call["site"])
    level = sarif.Level.NONE
    if call["finding"]:
        level = sarif.Level.NOTE if call["known"] else sarif.Level.WARNING
    package = target.tree.package if target.tree is not None else PurePosixPath()
    # Neither lines, which move, nor where the package stands.
    key = (site.path.relative_to(package).as_posix(), site.symbol, name)
    return sarif.Result(
        rule_id=name,
        kind="fail" if call["finding"] else "pass",
        level=level,
        message=_message(f"{name} is {call['verdict']}: {call['why']}"),
        locations=[_location(site, target.prefix)],
        partial_fingerprints={"finding/v1": _fingerprint(*key)},
    )


def _document(
    rules: Mapping[str, sarif.ReportingDescriptor], results: Iterable[sarif.Result]
) -> str:
    # Imports pydantic, which takes longer than judging a tree.
    import sarif_pydantic as sarif

    driver = sarif.ToolDriver(name="sgl-npu-patch", version=__version__, rules=list(rules.values()))
    places = {name: index for index, name in enumerate(rules)}
    run = sarif.Run(
        tool=sarif.Tool(driver=driver),
        results=[
            result.model_copy(update={"rule_index": places[result.rule_id]}) for result in results
        ],
    )
    document = sarif.Sarif(schema_uri=_SCHEMA, version="2.1.0", runs=[run])
    return f"{document.model_dump_json(by_alias=True, exclude_none=True, indent=2)}\n"


def _rule(name: str, meaning: str, **properties: str) -> sarif.ReportingDescriptor:
    import sarif_pydantic as sarif

    return sarif.ReportingDescriptor(
        id=name, short_description=_message(meaning), properties=properties
    )


def _check(result: Result, prefix: PurePosixPath) -> sarif.Result:
    import sarif_pydantic as sarif

    failed = result.verdict == "fail"
    told = [result.message, *(failure_lines(result)[1:] if failed else ())]
    return sarif.Result(
        rule_id=result.id,
        kind=_KINDS[result.verdict],
        level=sarif.Level.ERROR if failed else sarif.Level.NONE,
        message=_message("\n".join(told)),
        locations=[_location(result.site, prefix)] if result.site is not None else None,
    )


def _message(text: str) -> Any:
    import sarif_pydantic as sarif

    return sarif.Message(text=visible(text, "\n\t"))


def _fingerprint(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _location(site: Site, prefix: PurePosixPath) -> sarif.Location:
    import sarif_pydantic as sarif

    uri = quote((prefix / site.path).as_posix().encode("utf-8", "surrogateescape"))
    return sarif.Location(
        physical_location=sarif.PhysicalLocation(
            artifact_location=sarif.ArtifactLocation(uri=uri),
            region=sarif.Region(start_line=site.line) if site.line else None,
        ),
        logical_locations=[sarif.LogicalLocation(fully_qualified_name=visible(site.symbol))]
        if site.symbol
        else None,
    )
