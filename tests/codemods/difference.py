"""Write and apply differences between small trees, as unified diffs with little context."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

Sources = Mapping[str, bytes]


def between(before: Sources, after: Sources) -> str:
    """Write how one tree differs from another; a file that moved unchanged is a rename."""
    gone = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    parts = []
    for name in list(added):
        origin = next((other for other in gone if before[other] == after[name]), None)
        if origin is not None:
            parts.append(f"rename from {origin}\nrename to {name}\n")
            gone.remove(origin)
            added.remove(name)
    parts += [f"--- {name}\n+++ /dev/null\n" for name in gone]
    for name in [*(name for name in before if name in after), *added]:
        old, new = (tree.get(name, b"").decode().splitlines(True) for tree in (before, after))
        head = name if name in before else "/dev/null"
        lines = difflib.unified_diff(old, new, head, name, n=1)
        text = "".join("\n" if line == " \n" else line for line in lines)
        parts.append(text or ("" if name in before else f"--- /dev/null\n+++ {name}\n"))
    return "".join(parts)


def apply_renames(before: Sources, text: str) -> dict[str, bytes]:
    """Return a tree with nothing but the renames of a difference applied."""
    moves = dict(re.findall(r"^rename from (.*)\nrename to (.*)\n", text, re.MULTILINE))
    return {moves.get(name, name): data for name, data in before.items()}


def apply(before: Sources, text: str) -> dict[str, bytes]:
    """Return a tree with a difference applied.

    Line numbers are a hint only: a hunk goes to the nearest place that has its old lines.

    Raises:
        ValueError: a file or a hunk's old lines are not there.
    """
    after = apply_renames(before, text)
    for old, new, hunks in _files(text):
        if new == "/dev/null":
            del after[old]
            continue
        lines = after.get(old, b"").decode().splitlines(True)
        moved = 0
        for number, hunk in hunks:
            gone = [line[1:] or "\n" for line in hunk if line[0] in " -\n"]
            here = [line[1:] or "\n" for line in hunk if line[0] in " +\n"]
            places = [at for at in range(len(lines) + 1) if lines[at : at + len(gone)] == gone]
            if not places:
                raise ValueError(f"{new}: nothing reads\n{''.join(gone)}")
            at = min(places, key=lambda place: abs(place - (number - 1 + moved)))
            lines[at : at + len(gone)] = here
            moved += len(here) - len(gone)
        after[new] = "".join(lines).encode()
    return after


def _files(text: str) -> Iterator[tuple[str, str, list[tuple[int, list[str]]]]]:
    heads = re.compile(r"^--- (.*)\n\+\+\+ (.*)\n", re.MULTILINE)
    _, *parts = heads.split(text)
    for old, new, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        _, *hunks = re.split(r"^@@ -(\d+)\S* \+\S+ @@\n", body, flags=re.MULTILINE)
        yield (
            old,
            new,
            [
                (int(number), lines.splitlines(True))
                for number, lines in zip(hunks[::2], hunks[1::2], strict=True)
            ],
        )
