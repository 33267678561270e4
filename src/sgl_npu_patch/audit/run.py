"""Audit one tree."""

from __future__ import annotations

from dataclasses import dataclass

from sgl_npu_patch.audit import catalogue, devices, model
from sgl_npu_patch.audit.mode import read_mode
from sgl_npu_patch.audit.parsed import Parsed
from sgl_npu_patch.audit.scan import Call, scan
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.plan import require_marker
from sgl_npu_patch.engine.trees.directory import SourceTree


@dataclass(frozen=True, slots=True)
class Audited:
    """Hold all calls on a tree's NPU path, those with nothing to do about among them."""

    calls: tuple[Call, ...]

    @property
    def findings(self) -> tuple[Call, ...]:
        """List what may depend on the batch and is not replaced."""
        return tuple(call for call in self.calls if not call.covered)


def audit(tree: SourceTree, model_file: str | None = None) -> Audited:
    """Look at every call of an operator on the NPU path.

    Args:
        model_file: look only at what this model, relative to the package, uses.

    Raises:
        Refused: a file cannot be read or parsed, the tree is too old, or there is no such model.
    """
    require_marker(tree, Overlay(tree))
    parsed = Parsed(tree)
    mode = read_mode(parsed)
    used = model.uses(parsed, model_file) if model_file is not None else None
    calls = [*scan(parsed, catalogue.load(), mode), *devices.scan(parsed, mode)]
    return Audited(tuple(call for call in calls if used is None or used(call.site)))
