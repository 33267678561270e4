"""Check that what was inserted is formatted no worse than the file it stands in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.verify.findings import Finding
from sgl_npu_patch.verify.static.judged import Judged

_LENGTH = 88
"""SGLang's formatter's."""
_LINE = re.compile(r"\r\n|\r|\n")


def _is_mixed(line: str) -> bool:
    indent = line[: len(line) - len(line.lstrip())]
    return "\t" in indent and " " in indent


_FAULTS: dict[str, Callable[[str], bool]] = {
    f"longer than {_LENGTH} columns": lambda line: len(line) > _LENGTH,
    "with white space at its end": lambda line: line != line.rstrip(),
    "indented by tabs and spaces mixed": _is_mixed,
}


def layout_kept(judged: Judged, seam: str) -> Iterator[Finding]:
    """What the seam inserts is formatted no worse than the rest of its file."""
    for place in judged.places(seam):
        text, block = judged.source(place.path).text, place.block
        inner = list(_lines(text[block.start : block.end]))
        outer = list(_lines(text[: block.start] + text[block.end :]))
        endings = {ending for _, ending in outer if ending}
        usual = {said for said, has in _FAULTS.items() if any(has(line) for line, _ in outer)}
        first = len(_LINE.findall(text, 0, block.start)) + 1
        for number, (line, ending) in enumerate(inner, first):
            site = Site(place.path, number, block.qualname)
            if ending and endings and ending not in endings:
                said = " or ".join(map(repr, sorted(endings)))
                yield Finding(site, f"lines that end in {said}", repr(ending), "turn the ending")
            if block.kind == "assignment" or _ours().fullmatch(line.strip()):
                for said, has in _FAULTS.items():
                    if has(line) and said not in usual:
                        expected = f"no inserted line that is {said}"
                        yield Finding(site, expected, "one", "format the line", line.strip())


@cache
def _ours() -> re.Pattern[str]:
    """Recognise the lines of the templates, whatever names they are filled with."""
    lines = {
        line.strip()
        for template in files("sgl_npu_patch.templates").iterdir()
        if template.name.endswith(".tmpl")
        for line in template.read_text("utf-8").splitlines()
    }
    patterns = (
        re.sub(r"\\\$[a-z_]+", r"[\\w.]*", re.escape(line)) for line in sorted(lines) if line
    )
    return re.compile("|".join(patterns))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    for match in _LINE.finditer(text):
        yield text[start : match.start()], match.group()
        start = match.end()
    yield text[start:], ""
