"""Print a change set as a unified diff that git and patch take with ``-p1``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from sgl_npu_patch.engine.model import ChangeSet, FileChange

_NO_NEWLINE = b"\\ No newline at end of file\n"


def render_diff(changes: ChangeSet, prefix: PurePosixPath) -> bytes:
    """Return the diff of all files, in path order.

    Args:
        prefix: where the tree's root stands below the directory that the diff is applied in.
    """
    return b"".join(part for change in changes.changes for part in _file(change, prefix))


def _file(change: FileChange, prefix: PurePosixPath) -> Iterator[bytes]:
    name = (prefix / change.path).as_posix()
    yield f"diff --git {_quoted('a/' + name)} {_quoted('b/' + name)}\n".encode()
    if change.before is None:
        yield b"new file mode 100644\n"
    old = "/dev/null" if change.before is None else _header("a/" + name)
    yield f"--- {old}\n+++ {_header('b/' + name)}\n".encode()
    before, after = _lines(change.before or b""), _lines(change.after)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        first, last = group[0], group[-1]
        removed, added = _range(first[1], last[2]), _range(first[3], last[4])
        yield f"@@ -{removed} +{added} @@\n".encode()
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from _marked(b" ", before[i:j])
            else:
                yield from _marked(b"-", before[i:j])
                yield from _marked(b"+", after[k:m])


def _lines(data: bytes) -> list[bytes]:
    """Split after LF only, as git and patch do."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line
        if not line.endswith(b"\n"):
            yield b"\n" + _NO_NEWLINE


def _range(start: int, stop: int) -> str:
    length = stop - start
    begin = start + 1 if length else start
    return f"{begin}" if length == 1 else f"{begin},{length}"


def _quoted(name: str) -> str:
    plain = all(32 <= ord(c) < 127 and c not in '"\\' for c in name)
    if plain:
        return name
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in os.fsencode(name)
    )
    return f'"{escaped}"'


def _header(name: str) -> str:
    quoted = _quoted(name)
    return f"{quoted}\t" if " " in quoted and quoted == name else quoted
