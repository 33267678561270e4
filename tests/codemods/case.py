"""Read, judge and write the case files of the seams.

A case is a shape of SGLang with a difference, and what one seam makes of it:

    [0.5.12]                   the shape: a folder of `shapes/`, or `0.5.12 patched` by the seam
    --- srt/server_args.py     the difference, if there is one
    +++ srt/server_args.py
    @@ -8 +8 @@
    -CHOICES = ["fa3"]
    +CHOICES = list(("fa3",))

    [conflict]                 the outcome, and what is printed of it
    conflict in backend_lists
      sought   CHOICES

    [mended]                   what the line `next` asks for, done to the tree of the case;
    --- srt/server_args.py     `undone` where that is to take the difference back

`[pending]` is followed by how the result differs from the golden files of the shape, which stand
in `SEAM/SHAPE/`: nothing, where the edit is the same. `python -m tests.codemods.refresh` rewrites
the goldens and the outcomes. Text in front of the first bracket is a remark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import Outcome
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.reports.conflicts import evidence_lines, title
from sgl_npu_patch.reports.console import paragraph
from tests.codemods import difference
from tests.codemods.difference import Sources
from tests.helpers import ROOT, SHAPES, MemoryTree, judge, shape

FOLDER = Path(__file__).parent
UNDONE = "undone\n"
STATUSES = FOLDER / "statuses.txt"
CASES = sorted(FOLDER.glob("*/*/*.diff"))
GOLDENS = [(seam, name) for seam in SERIES for name in SHAPES if (FOLDER / seam / name).is_dir()]
VENDORED = {f"{PROJECT.vendor_folder}/{name}.py" for name in PROJECT.vendored}


@dataclass(frozen=True, slots=True)
class Case:
    """Hold one case file by its parts, each a text as in the file."""

    seam: str
    shape: str
    remark: str
    difference: str
    status: str
    outcome: str
    mended: str | None

    @property
    def base(self) -> dict[str, bytes]:
        """Return the tree from which the case differs."""
        name, _, patched = self.shape.partition(" ")
        return dict(_patched(self.seam, name)) if patched else shape(name)

    @property
    def files(self) -> dict[str, bytes]:
        """Return the tree of the case."""
        return difference.apply(self.base, self.difference)

    @property
    def folder(self) -> str:
        """Return the name of the folder for cases with this outcome."""
        return {"pending": "edited", "conflict": "refused"}.get(self.status, "settled")

    @property
    def advice(self) -> str:
        """Return the line `next` of a conflict."""
        return " ".join(self.outcome.partition("\n  next ")[2].split())

    def mend(self) -> dict[str, bytes]:
        """Return the tree after what the line `next` asks for."""
        return difference.apply(self.files, self.mended or "")

    def refreshed(self, outcome: Outcome, after: Sources) -> Case:
        """Return the case with its differences written afresh, and this outcome."""
        mended = self.mended
        if mended and mended != UNDONE:
            mended = difference.between(self.files, self.mend())
        files = self.files
        return replace(
            self,
            difference=difference.between(self.base, files),
            status=outcome.status,
            outcome=described(outcome, self, files, after),
            mended=mended,
        )

    def __str__(self) -> str:
        parts = [
            f"[{self.shape}]\n{self.difference}",
            f"[{self.status}]\n{self.outcome}",
            *([] if self.mended is None else [f"[mended]\n{self.mended}"]),
        ]
        return self.remark + "\n".join(parts)


@cache
def unchanged(seam: str, shape: str) -> str:
    """Return the status of a seam on the tree from which its cases differ."""
    return judge(seam, Case(seam, shape, "", "", "", "", None).base)[0].status


@cache
def _patched(seam: str, name: str) -> dict[str, bytes]:
    return judge(seam, shape(name))[1]


def read(path: Path) -> Case:
    """Read a case file."""
    remark, *parts = re.split(r"^\[(.*)\]\n", path.read_text("utf-8"), flags=re.MULTILINE)
    names, last = parts[::2], parts.pop()
    texts = [*(text.removesuffix("\n") for text in parts[1::2]), last]
    mended = texts[2] if names[2:] == ["mended"] else None
    return Case(path.parts[-3], names[0], remark, texts[0], names[1], texts[1], mended)


def golden(seam: str, name: str) -> dict[str, bytes]:
    """Return what a seam leaves in the files of a shape that it changes."""
    folder = FOLDER / seam / name
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.py"))
    }


def described(outcome: Outcome, case: Case, files: Sources, after: Sources) -> str:
    """Write what a case file says about an outcome."""
    if outcome.evidence is not None:
        return "".join(
            f"{line}\n" for line in [title([outcome.seam]), *evidence_lines(outcome.evidence)]
        )
    lines = [f"gaps: {', '.join(outcome.gaps)}\n"] if outcome.gaps else []
    if outcome.status == "pending":
        expected = difference.apply_renames(
            golden(case.seam, case.shape.split()[0]), case.difference
        )
        base = {**files, **{name: data for name, data in expected.items() if name in files}}
        made = {name: data for name, data in after.items() if name in base}
        return "".join(lines) + difference.between(base, made)
    lines += [f"{line}\n" for line in paragraph(outcome.reason, "", "  ") if line]
    lines += [f"where: {site}\n" for site in outcome.sites]
    return "".join(lines)


def statuses() -> str:
    """Write the status of each seam on each shape, the whole series in one run."""
    rows = [["", *SHAPES], *([seam] for seam in SERIES)]
    for name in SHAPES:
        tree = MemoryTree({ROOT / path: data for path, data in shape(name).items()})
        for row, outcome in zip(rows[1:], make_plan(tree, SERIES).outcomes, strict=True):
            row.append(" ".join([outcome.status, *outcome.gaps]))
    return "".join("".join(f"{cell:<18}" for cell in row).rstrip() + "\n" for row in rows)
