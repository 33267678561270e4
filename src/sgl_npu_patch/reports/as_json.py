"""Print documents as JSON, in ASCII: any stream and any path will do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sgl_npu_patch.reports.formats import Target


def render(document: object, target: Target) -> str:
    """Return a document with its keys in the order in which they were set."""
    return f"{json.dumps(document, indent=2)}\n"


def render_rows(document: Mapping[str, Any], target: Target) -> str:
    """Return a document with each element of its lists on one line."""
    # What takes long to print is the same for most trees.
    printed: dict[tuple[int, ...], str] = {}

    def row(each: Mapping[str, Any]) -> str:
        lists = {key: value for key, value in each.items() if isinstance(value, list)}
        shared = tuple(map(id, lists.values()))
        if shared not in printed:
            printed[shared] = json.dumps(lists)[1:-1]
        own = json.dumps({key: value for key, value in each.items() if key not in lists})[1:-1]
        return ", ".join(filter(None, (own, printed[shared])))

    parts = []
    for key, value in document.items():
        rows = [f"\n    {{{row(each)}}}" for each in value] if isinstance(value, list) else []
        whole = f"[{','.join(rows)}\n  ]" if rows else json.dumps(value)
        parts.append(f"\n  {json.dumps(key)}: {whole}")
    return f"{{{','.join(parts)}\n}}\n"
