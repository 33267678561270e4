"""Check that each seam's change is in the tree, compiles and was written by this version."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import SETTLED
from sgl_npu_patch.verify.findings import Finding, NotApplicable
from sgl_npu_patch.verify.static.judged import Judged

_LINES = 12
"""How much is shown of what is missing."""


def in_place(judged: Judged, seam: str) -> Iterator[Finding]:
    """Nothing is left to do for the seam."""
    outcome = judged.outcomes[seam]
    if outcome.status in ("not-needed", "withheld"):
        raise NotApplicable(f"{outcome.status}: {outcome.reason}")
    if outcome.status in SETTLED:
        return
    evidence = outcome.evidence
    if evidence is None:
        what = "an older version of it" if outcome.outdated else "a place without it"
        for site in outcome.sites:
            code = _missing(judged, site)
            yield Finding(site, "the seam's change", what, "run sgl-npu-patch apply", code)
        return
    sites = evidence.where or (Site(judged.package / "__init__.py", 0, ""),)
    yield Finding(
        sites[0],
        f"{evidence.sought}: {evidence.expected}",
        evidence.found,
        evidence.action,
        "\n".join(str(site) for site in sites[1:]),
    )


def _missing(judged: Judged, site: Site) -> str:
    """Show the lines that `apply` would change at a place, as in a diff."""
    changes = [c for c in judged.plan.overlay.changes().changes if c.path == site.path]
    if not changes or changes[0].before is None:
        return ""
    before, after = (
        data.decode("utf-8", "replace").splitlines()
        for data in (changes[0].before, changes[0].after)
    )
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal" and i <= site.line <= max(j, i + 1):
            lines = textwrap.dedent("\n".join([*before[i:j], *after[k:m]])).split("\n")
            signed = [f"{'-' if n < j - i else '+'}{line}" for n, line in enumerate(lines)]
            return "\n".join(signed[:_LINES])
    return ""


def compiles(judged: Judged, seam: str) -> Iterator[Finding]:
    """Every file that the seam edits or adds compiles."""
    files = judged.files(seam)
    if not files:
        raise NotApplicable("it has no file in this tree")
    for path in files:
        error = judged.compiles(path)
        if error is not None:
            line = getattr(error, "lineno", 0) or 0
            said = getattr(error, "msg", "") or str(error)
            yield Finding(
                Site(path, line, ""), "a file that compiles", said, "restore the file and apply"
            )


def unmodified(judged: Judged, seam: str) -> Iterator[Finding]:
    """The vendored module is byte for byte what this version writes."""
    if judged.outcomes[seam].status == "upstream":
        raise NotApplicable("upstream: the tree has upstream's own module")
    for module in SERIES[seam].vendors:
        path = judged.package / PROJECT.vendor_folder / f"{module}.py"
        data = judged.overlay.read(path)
        found = vendor.recognise(PROJECT, module, data)
        if found.state == "current":
            continue
        edit = vendor.first_edit(PROJECT, module, data or b"") if found.state == "edited" else ""
        written = f", written by version {found.version}" if found.version else ""
        yield Finding(
            Site(path, _line(edit), module),
            "the module as this version writes it",
            f"{found.state}{written}" + (f", {edit}" if edit else ""),
            "move edits elsewhere, delete the file and run sgl-npu-patch apply",
        )


def _line(edit: str) -> int:
    number = edit.removeprefix("line ").partition(":")[0]
    return int(number) if number.isdigit() else 0
