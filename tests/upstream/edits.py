"""Show what `apply` writes, file by file and symbol by symbol, without the text of SGLang.

A hunk begins with its file and symbol. Of the lines that are taken out only the number is shown,
likewise of those that only move to the side; what is inserted or rewritten stands in full. Vendored
modules are named; their text is in npu_ops/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

from sgl_npu_patch.engine.model import FileChange
from sgl_npu_patch.engine.text.source import read_source


def render(changes: Iterable[FileChange]) -> str:
    """Return the hunks of a change set, in path order."""
    return "".join(
        f"@@ added {change.path}\n" if change.before is None else "".join(_hunks(change))
        for change in changes
    )


def _hunks(change: FileChange) -> Iterator[str]:
    assert change.before is not None
    source = read_source(change.path, change.after)
    before, after = (
        data.decode().splitlines(keepends=True) for data in (change.before, change.after)
    )
    starts = [0]
    for line in after:
        starts.append(starts[-1] + len(line))
    shown = ""
    for removed, first, inserted in _differences(before, after):
        offset = starts[first]
        around = [block for block in source.blocks if block.start <= offset < block.end]
        symbol = max(around, key=lambda block: block.start).qualname if around else "module"
        if symbol != shown:
            yield f"@@ {change.path} {symbol}\n"
            shown = symbol
        else:
            yield "\n"
        yield from _body(removed, inserted)


def _differences(before: list[str], after: list[str]) -> Iterator[tuple[list[str], int, list[str]]]:
    """Yield removed lines, and where in the result which lines stand for them."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((number for number, (old, new) in pairs if old != new), 0)
    matcher = SequenceMatcher(None, before[same:], after[same:], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "insert":
            start, end = _slid(after, same + k, same + m)
            yield [], start, after[start:end]
        elif tag != "equal":
            yield before[same + i : same + j], same + k, after[same + k : same + m]


def _slid(lines: list[str], start: int, end: int) -> tuple[int, int]:
    """Return the same insertion where it begins with a statement: the least indented line."""
    ways = [(start, end)]
    while start and lines[start - 1] == lines[end - 1]:
        start, end = start - 1, end - 1
        ways.append((start, end))
    return min(ways, key=lambda way: _depth(lines[way[0]]))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else len(line) + 1000


def _body(removed: list[str], inserted: list[str]) -> Iterator[str]:
    """Yield the lines of one hunk."""
    rest = [line.strip() for line in removed]
    if rest:
        yield f"-{_lines(len(rest))}\n"
    moved = 0
    for line in inserted:
        if line.strip() and line.strip() in rest:
            rest.remove(line.strip())
            moved += 1
            continue
        if moved:
            yield f">{_lines(moved)}\n"
            moved = 0
        yield f"+{line.rstrip()}\n"
    if moved:
        yield f">{_lines(moved)}\n"


def _lines(count: int) -> str:
    return f"{count} line{'s' * (count > 1)}"
