"""Every kind of refactoring: a function that refactors a release at random, by its name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.refactor import moves, rewrites
from tests.refactor.project import Case

KINDS: dict[str, Callable[[Random, str], Case]] = {
    kind.__name__: kind
    for kind in (
        moves.moved_in_file,
        moves.moved_to_module,
        moves.class_moved_to_module,
        moves.moved_to_base,
        rewrites.locals_renamed,
        rewrites.reformatted,
        rewrites.parenthesised_and_commented,
        rewrites.annotated_and_decorated,
        rewrites.parameters_appended,
        rewrites.lists_rewritten,
        rewrites.statements_inserted,
        moves.handler_split,
        moves.early_returns,
        rewrites.encoded,
    )
}
