"""Find modules that only the NPU path imports, though nothing in their names says so."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath

from sgl_npu_patch.audit.parsed import Parsed


def only_imported_on_npu(
    parsed: Parsed, files: Mapping[PurePosixPath, tuple[bytes, ...]]
) -> set[PurePosixPath]:
    """List the modules that some of these files import on an NPU, and nothing else mentions.

    Args:
        files: see `scan`; of other files the bytes alone are looked at.
    """
    importers: dict[PurePosixPath, set[PurePosixPath]] = defaultdict(set)
    elsewhere: set[PurePosixPath] = set()
    for path, near in files.items():
        for node, place in parsed.places(path, near).items():
            if isinstance(node, ast.ImportFrom):
                for _, file, _ in parsed.imports(node, path):
                    if place.where == "npu":
                        importers[file].add(path)
                    else:
                        elsewhere.add(file)
    return {
        file
        for file, known in importers.items()
        if file not in elsewhere
        and parsed.where(file) == "common"
        and file.stem != "__init__"
        and {*parsed.tree.containing(file.stem.encode())} - {file} <= known
    }
