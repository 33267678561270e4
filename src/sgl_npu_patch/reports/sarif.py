"""Print the results of checks as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from sgl_npu_patch import __version__
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.reports.checks import failure_lines
from sgl_npu_patch.verify.results import Result, Verdict

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


def render_sarif(results: Sequence[Result], prefix: PurePosixPath) -> str:
    """Give one rule and one result a check.

    Args:
        prefix: where the tree's root stands below that of its repository, to which code hosts
            take paths as relative.
    """
    # Imports pydantic, which takes longer than judging a tree.
    import sarif_pydantic as sarif

    rules = {result.id: result for result in results}
    driver = sarif.ToolDriver(
        name="sgl-npu-patch",
        version=__version__,
        rules=[
            sarif.ReportingDescriptor(
                id=rule.id,
                short_description=sarif.Message(text=rule.meaning),
                properties={"seam": rule.seam, "kind": rule.kind},
            )
            for rule in rules.values()
        ],
    )
    places = {name: index for index, name in enumerate(rules)}
    run = sarif.Run(
        tool=sarif.Tool(driver=driver),
        results=[_result(result, places[result.id], prefix) for result in results],
    )
    document = sarif.Sarif(schema_uri=_SCHEMA, version="2.1.0", runs=[run])
    return str(document.model_dump_json(by_alias=True, exclude_none=True, indent=2))


def _result(result: Result, rule: int, prefix: PurePosixPath) -> sarif.Result:
    import sarif_pydantic as sarif

    failed = result.verdict == "fail"
    told = [result.message, *(failure_lines(result)[1:] if failed else ())]
    return sarif.Result(
        rule_id=result.id,
        rule_index=rule,
        kind=_KINDS[result.verdict],
        level=sarif.Level.ERROR if failed else sarif.Level.NONE,
        message=sarif.Message(text="\n".join(told)),
        locations=[_location(result.site, prefix)] if result.site is not None else None,
    )


def _location(site: Site, prefix: PurePosixPath) -> sarif.Location:
    import sarif_pydantic as sarif

    return sarif.Location(
        physical_location=sarif.PhysicalLocation(
            artifact_location=sarif.ArtifactLocation(uri=quote((prefix / site.path).as_posix())),
            region=sarif.Region(start_line=site.line) if site.line else None,
        ),
        logical_locations=[sarif.LogicalLocation(fully_qualified_name=site.symbol)]
        if site.symbol
        else None,
    )
