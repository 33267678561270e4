"""Check that the edited definitions are formatted no worse than the rest of their files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.verify.findings import Finding
from sgl_npu_patch.verify.static.judged import Judged

_LENGTH = 88
"""SGLang's formatter's."""
_LINE = re.compile(r"\r\n|\r|\n")
_FAULTS = ("longer than 88 columns", "ends in white space", "indented by tabs and spaces mixed")


def layout_kept(judged: Judged, seam: str) -> Iterator[Finding]:
    """What the seam edits is formatted no worse than the rest of its file."""
    for place in judged.places(seam):
        source = judged.source(place.path)
        first = source.text.count("\n", 0, place.block.start) + 1
        inner = list(_lines(source.cut(place.block)))
        outer = list(_lines(source.text[: place.block.start] + source.text[place.block.end :]))
        endings = {ending for _, ending in outer if ending}
        for number, (line, ending) in enumerate(inner, first):
            site = Site(place.path, number, place.block.qualname)
            if ending and endings and ending not in endings:
                expected = f"lines that end in {'/'.join(map(repr, sorted(endings)))}"
                yield Finding(site, expected, repr(ending), "turn the line ending", line.strip())
            for fault in _FAULTS:
                if _has(fault, line) and not any(_has(fault, o) for o, _ in outer):
                    yield Finding(
                        site, f"no line that is {fault}", "one", "format the line", line.strip()
                    )


def _has(fault: str, line: str) -> bool:
    if fault == _FAULTS[0]:
        return len(line) > _LENGTH
    if fault == _FAULTS[1]:
        return line != line.rstrip()
    indent = line[: len(line) - len(line.lstrip())]
    return "\t" in indent and " " in indent


def _lines(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    for match in _LINE.finditer(text):
        yield text[start : match.start()], match.group()
        start = match.end()
    yield text[start:], ""
