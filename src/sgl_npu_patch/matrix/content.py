"""Find out about a tree what depends on its content alone, so that it can be kept by content."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sgl_npu_patch.engine.errors import TooOld, Unparsable
from sgl_npu_patch.engine.store import NotLasting
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.open import prefix_of

if TYPE_CHECKING:
    from sgl_npu_patch.engine.overlay import Cache

Checks = Literal["", "static", "verify"]


@dataclass(frozen=True, slots=True)
class Options:
    """What to find out about each tree, and whether to keep it for later runs.

    Attributes:
        checks: which checks of `verify` to run: none, the static ones, or all.
        diff: keep what `apply` would change.
        cache: use what earlier runs found out.
    """

    checks: Checks = ""
    diff: bool = False
    cache: bool = True


@dataclass(slots=True)
class ContentEvaluator:
    """Evaluate the contents of trees; what was derived from one tree's files serves the next."""

    options: Options
    _derived: Cache | None = field(default=None)

    def evaluate(self, tree: SourceTree, opened: SourceTree) -> bytes:
        """Return the part of a tree's document that depends on its content, as JSON.

        Args:
            opened: the tree as it was opened, which knows where it stands.

        Raises:
            NotLasting: it may be another the next time.
            Refused: the tree cannot be read.
        """
        try:
            found, lasting = self._evaluate(tree, opened)
        except (TooOld, Unparsable) as error:
            reason = error.reason if isinstance(error, TooOld) else str(error)
            found, lasting = {"error": {"message": reason}}, True
        data = json.dumps(found).encode()
        if not lasting:
            raise NotLasting(data)
        return data

    def _evaluate(self, tree: SourceTree, opened: SourceTree) -> tuple[dict[str, Any], bool]:
        from sgl_npu_patch.codemods import SERIES
        from sgl_npu_patch.engine.overlay import Cache, Overlay
        from sgl_npu_patch.engine.plan import make_plan
        from sgl_npu_patch.reports.codec import plan_document

        self._derived = self._derived.for_another_tree() if self._derived else Cache()
        plan = make_plan(Overlay(tree, self._derived), SERIES)
        found = plan_document(plan)
        if self.options.diff:
            from sgl_npu_patch.reports.diff import render_diff

            diff = render_diff(plan.changes, prefix_of(opened))
            found["diff"] = diff.decode("utf-8", "replace")
        if not self.options.checks:
            return found, True
        found["checks"] = []
        if plan.conflicts:
            return found, True
        from sgl_npu_patch.matrix.patched import patched
        from sgl_npu_patch.reports.codec import check_documents
        from sgl_npu_patch.verify.run import verify

        after = patched(tree, plan.changes)
        verified = verify(after, static_only=self.options.checks == "static")
        found["checks"] = check_documents(verified.results)
        return found, verified.lasting
