"""Find modules that only the NPU path imports, though nothing in their names says so."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from sgl_npu_patch.audit.npu_path import Where
from sgl_npu_patch.audit.parsed import Parsed


def only_imported_on_npu(
    parsed: Parsed, files: Mapping[PurePosixPath, tuple[bytes, ...]]
) -> set[PurePosixPath]:
    """List the modules that some of these files import on an NPU, and nothing else mentions.

    Args:
        files: see `scan`; of other files the bytes alone are looked at.
    """
    importers: dict[PurePosixPath, set[PurePosixPath]] = defaultdict(set)
    for path, near in files.items():
        for file, where in _imports(parsed, path, near):
            if where == "npu" and parsed.where(file) == "common" and file.stem != "__init__":
                importers[file].add(path)
    return {file for file, known in importers.items() if _is_for_npu(parsed, file, known)}


def _imports(
    parsed: Parsed, path: PurePosixPath, near: tuple[bytes, ...] = ()
) -> Iterator[tuple[PurePosixPath, Where]]:
    for node, place in parsed.places(path, near).items():
        if isinstance(node, ast.ImportFrom):
            for _, file, _ in parsed.imports(node, path):
                yield file, place.where


def _is_for_npu(parsed: Parsed, file: PurePosixPath, known: set[PurePosixPath]) -> bool:
    mentioning = {*parsed.tree.containing(file.stem.encode())} - {file}
    # What was looked at were parts of the importers.
    return mentioning <= known and all(
        where == "npu" for path in known for other, where in _imports(parsed, path) if other == file
    )
