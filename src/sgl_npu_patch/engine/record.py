"""Keep the RECORD of an installed package true to its files.

pip uninstalls by RECORD, and `pip install --force-reinstall` and auditing tools compare with it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from sgl_npu_patch.engine.model import ChangeSet, FileChange
from sgl_npu_patch.engine.trees.directory import DirectoryTree


@dataclass(frozen=True, slots=True)
class Recorded:
    """Hold a change set with the RECORDs that follow from it, and what could not be recorded."""

    changes: ChangeSet
    warnings: tuple[str, ...] = ()


def record(tree: DirectoryTree, changes: ChangeSet) -> Recorded:
    """Add the RECORD of every distribution that owns a changed file to a change set.

    A tree without a `*.dist-info` that an installer wrote is a checkout or a fetched release: it
    has nothing to be recorded in.

    Raises:
        Refused: a RECORD cannot be read.
    """
    if not changes.changes:
        return Recorded(changes)
    if tree.package == PurePosixPath():
        return Recorded(changes, _outside(tree, changes))
    package, beside = tree.project.package, tree.package.parent
    own = [_relative(change.path, beside) for change in changes.changes if change.before]
    records, unrecorded = [], []
    for folder in tree.metadata():
        before = tree.read(folder / "RECORD")
        if before is not None:
            # Splitting every RECORD of a large site-packages takes longer than all the rest.
            mentioned = any(path.encode() in before for path in own)
            if mentioned and paths_of(before).intersection(own):
                after = update(
                    before, ((_relative(c.path, beside), c.after) for c in changes.changes)
                )
                records.append(FileChange(folder / "RECORD", before, after))
        elif package in folder.name.lower() and tree.read(folder / "INSTALLER") is not None:
            unrecorded.append(folder)
    warnings = [] if records else [_missing(folder) for folder in unrecorded]
    together = sorted((*changes.changes, *records), key=lambda change: change.path)
    return Recorded(ChangeSet(tuple(together)), tuple(warnings))


def _relative(path: PurePosixPath, folder: PurePosixPath) -> str:
    return path.relative_to(folder).as_posix()


def _missing(folder: PurePosixPath) -> str:
    return (
        f"{folder} has no RECORD, so the change is recorded nowhere: an uninstaller will not know "
        "the added files"
    )


def _outside(tree: DirectoryTree, changes: ChangeSet) -> tuple[str, ...]:
    """Warn of a RECORD beside the folder that the user named, where nothing is written."""
    folder = tree.root.resolve()
    first = next(f"{folder.name}/{change.path}" for change in changes.changes if change.before)
    for record in sorted(folder.parent.glob("*.dist-info/RECORD")):
        if first in paths_of(record.read_bytes()):
            said = f"{record} stands outside of {tree.label} and is not updated"
            return (f"{said}; give {folder.parent} to have it updated too",)
    return ()


def paths_of(data: bytes) -> set[str]:
    """List the paths in a RECORD."""
    return {row[0] for row in _rows(data.decode("utf-8", "surrogateescape").splitlines()) if row}


def update(data: bytes, contents: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a RECORD with new hashes and sizes, and one more line for each new file.

    All other lines keep their bytes and their place.
    """
    new = dict(contents)
    lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    ending = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += ending
    last = len(lines)
    for number, row in enumerate(_rows(lines)):
        if row and row[0] in new:
            lines[number] = line_of(row[0], new.pop(row[0]), ending)
            last = number + 1
    lines[last:last] = [line_of(path, content, ending) for path, content in sorted(new.items())]
    return "".join(lines).encode("utf-8", "surrogateescape")


def line_of(path: str, content: bytes | None = None, ending: str = "\n") -> str:
    """Return one line of a RECORD; RECORD itself is listed without a content."""
    rest = ("", "") if content is None else (digest_of(content), len(content))
    text = io.StringIO()
    csv.writer(text, lineterminator=ending).writerow((path, *rest))
    return text.getvalue()


def digest_of(content: bytes, algorithm: str = "sha256") -> str:
    """Return a content's hash in the form that RECORD has."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest())
    return f"{algorithm}={digest.rstrip(b'=').decode()}"


def _rows(lines: Iterable[str]) -> list[list[str]]:
    """Split each line by itself: a quoted path holds commas, never a line end."""
    return [next(csv.reader([line]), []) for line in lines]
