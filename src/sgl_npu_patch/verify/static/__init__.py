"""Check a patched tree by its text alone: no torch, nothing of the tree is executed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.errors import Site, Unparsable
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.verify.findings import Finding, NotApplicable, failed
from sgl_npu_patch.verify.static import calls, content, layout, names, presence, values  # noqa: F401
from sgl_npu_patch.verify.static.judged import OWN, Check, Judged


@dataclass(frozen=True, slots=True)
class _Declared:
    """Pair a check with one seam that it is made for."""

    seam: str
    run: Check

    @property
    def id(self) -> str:
        return f"{self.seam}.{self.run.__name__}"

    @property
    def meaning(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


def _declared() -> Iterator[_Declared]:
    for seam, declared in SERIES.items():
        yield _Declared(seam, presence.in_place)
        yield _Declared(seam, presence.compiles)
        if declared.vendors:
            yield _Declared(seam, presence.unmodified)
        yield _Declared(seam, names.names_resolve)
        if seam in calls.SEAMS:
            yield _Declared(seam, calls.calls_bind)
        yield from (_Declared(seam, run) for run in OWN[seam])
        yield _Declared(seam, layout.layout_kept)


CHECKS = {declared.id: declared for declared in _declared()}
"""Every static check by its id, in the order of the seams."""


def check(judged: Judged, only: Collection[str] = ()) -> list[Result]:
    """Run the static checks.

    Args:
        only: ids and seams to take, all if empty.
    """
    return [
        _result(judged, declared)
        for declared in CHECKS.values()
        if declared.seam in judged.outcomes
        and (not only or declared.id in only or declared.seam in only)
    ]


def _result(judged: Judged, declared: _Declared) -> Result:
    outcome = judged.outcomes[declared.seam]
    verdict: Verdict = "pass"
    message = declared.meaning
    try:
        findings = list(declared.run(judged, declared.seam))
    except NotApplicable as reason:
        verdict, message, findings = "not-applicable", str(reason), []
    except RecursionError:
        verdict, message, findings = "not-applicable", "expressions are nested too deeply", []
    except Unparsable as error:
        site = Site(error.path, error.line, "")
        findings = [Finding(site, "a file that parses", error.reason, "restore the file")]
    if findings:
        return failed(declared.id, declared.seam, declared.meaning, findings)
    if verdict == "pass" and outcome.gaps and declared.run is presence.in_place:
        whose = "upstream's own" if outcome.status == "upstream" else "our"
        message = f"{whose} version, with gaps: {', '.join(outcome.gaps)}"
    return Result(
        id=declared.id,
        seam=declared.seam,
        kind="static",
        verdict=verdict,
        meaning=declared.meaning,
        message=message,
        site=outcome.sites[0] if outcome.sites else None,
    )
