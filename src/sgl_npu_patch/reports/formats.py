"""Know every format of a report: which kinds of document it prints, and what prints them.

A new format is one entry below and the module that it names. The options of all commands and the
reports that `matrix` writes to files read this table; the lists in the documentation are written by
hand, and a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sgl_npu_patch.engine.trees.directory import SourceTree

Kind = Literal["plan", "checks", "audit", "matrix", "bisect", "machine", "series"]
"""What is reported: by `status` and `apply`, `verify`, `audit`, `matrix`, `bisect`, `doctor`,
`list`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a report is printed.

    Attributes:
        stream: decides on colour and width; None for a file.
        tree: the tree that the report is about, if it is about one.
    """

    stream: IO[str] | None = None
    tree: SourceTree | None = None

    @property
    def prefix(self) -> PurePosixPath:
        """Return where the tree's root stands below that of its repository, if it is in one."""
        from sgl_npu_patch.engine.trees.open import prefix_of

        return PurePosixPath() if self.tree is None else prefix_of(self.tree)


Renderer = Callable[[Any, Target], str]
"""Returns the text of a document, as reports/codec.py makes it, with a line end."""

_RENDERERS: Mapping[str, Mapping[Kind, str]] = {
    "text": {
        "plan": "plan_text:render",
        "checks": "checks_text:render",
        "audit": "audit_text:render",
        "matrix": "matrix_text:render",
        "bisect": "bisect_text:render",
        "machine": "machine_text:render",
        "series": "series_text:render",
    },
    "json": {
        "plan": "as_json:render",
        "checks": "as_json:render",
        "audit": "as_json:render_rows",
        "matrix": "as_json:render_rows",
        "bisect": "as_json:render",
        "machine": "as_json:render",
        "series": "as_json:render",
    },
    "junit": {"checks": "junit:render_checks", "matrix": "junit:render_matrix"},
    "sarif": {
        "checks": "sarif:render_checks",
        "audit": "sarif:render_audit",
        "matrix": "sarif:render_matrix",
    },
    "markdown": {"matrix": "markdown:render"},
    "github": {"matrix": "github:render"},
    "html": {"matrix": "html:render"},
}
"""Formats, the kinds that each prints, and the function; imported only when it prints."""

SHOWS_DIFFS = frozenset({"html"})
"""Formats that show what `apply` would change in each tree of a `matrix`."""


def formats_of(kind: Kind) -> list[str]:
    """Return the formats in which a kind of document is printed."""
    return [name for name, kinds in _RENDERERS.items() if kind in kinds]


def render(name: str, kind: Kind, document: object, target: Target) -> str:
    """Return a document in a format."""
    module, _, function = _RENDERERS[name][kind].partition(":")
    renderer: Renderer = getattr(import_module(f"{__package__}.{module}"), function)
    return renderer(document, target)
