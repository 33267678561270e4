"""Declare a seam: the one statement that every codemod file makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.view import Spot, View


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """State that the code path that a seam patches does not exist, and what is in its place."""

    reason: str
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class Withheld:
    """State that the change is left out because it would be unsafe on this tree."""

    reason: str
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Pair one definition with the pure function that edits it.

    ``edit`` returns the very node where it has the change, so that editing twice is editing once;
    it raises `AnchorError` where it cannot find its one anchor.
    """

    spot: Spot
    edit: Callable[[cst.CSTNode], cst.CSTNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """Declare what a seam edits, when it must not, and what it stands on.

    Attributes:
        targets: the definitions to edit, found through the view.
        premise: why nothing is to be done on this tree, if so.
        is_upstream: where the tree has upstream's own form, if that is to be left as it is.
        gaps: names of what upstream's form leaves open.
        left_open: names of what our form leaves open too on this tree.
        needs: seams without which this one is unsafe.
        needs_if_defined: seams needed only on trees where they have something to do.
        vendors: vendored modules that the seam adds to the tree.
        adapted: whether a tree has upstream's adaptation, for a seam whose form equals upstream's:
            what is in place there is upstream's, and elsewhere ours if our vendored header is.
    """

    targets: Callable[[View], Sequence[Target]] = lambda view: ()
    premise: Callable[[View], NotNeeded | Withheld | None] = lambda view: None
    is_upstream: Callable[[View], Site | None] = lambda view: None
    gaps: Callable[[View], tuple[str, ...]] = lambda view: ()
    left_open: Callable[[View], tuple[str, ...]] = lambda view: ()
    needs: tuple[str, ...] = ()
    needs_if_defined: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    adapted: Callable[[View], bool] | None = None
