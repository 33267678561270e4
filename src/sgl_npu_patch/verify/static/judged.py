"""Hold a judged tree: what each seam found in it and where its definitions stand."""

from __future__ import annotations

import ast
import re
import symtable
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import libcst as cst

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream import attention, mode, symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.model import Outcome
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.plan import Plan, make_plan
from sgl_npu_patch.engine.text.block import Block
from sgl_npu_patch.engine.text.plain import parse
from sgl_npu_patch.engine.text.source import Source
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.verify.findings import Finding, NotApplicable

_BOM = "\ufeff"
_WORD = re.compile(r"\w+")
_NEWLINE = re.compile(r"\r\n|\r|\n")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """Name one definition that a seam edits, or that upstream's own form consists of."""

    path: PurePosixPath
    block: Block

    @property
    def site(self) -> Site:
        """Give its place."""
        return Site(self.path, self.block.line, self.block.qualname)


@dataclass(frozen=True, slots=True)
class Found:
    """Hold a node with what is around it.

    ``owner`` is the innermost class, ``scope`` the dotted name of the innermost definition.
    """

    node: ast.AST
    parent: ast.AST
    owner: str
    function: FunctionNode | None
    scope: str


@dataclass
class Judged:
    """Look at one tree as a seam does, and as Python's own parser does."""

    overlay: Overlay
    plan: Plan
    _trees: dict[PurePosixPath, ast.Module] = field(default_factory=dict)
    _compiled: dict[PurePosixPath, SyntaxError | ValueError | None] = field(default_factory=dict)
    _tables: dict[PurePosixPath, symtable.SymbolTable] = field(default_factory=dict)
    _places: dict[str, tuple[Place, ...]] = field(default_factory=dict)

    @property
    def package(self) -> PurePosixPath:
        """Give the path of the ``sglang`` folder."""
        return self.overlay.tree.package

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Give each seam's outcome."""
        return {outcome.seam: outcome for outcome in self.plan.outcomes}

    @cached_property
    def native(self) -> bool:
        """Tell whether the tree carries upstream's own adaptation."""
        try:
            return mode.native_enable(self.view()) is not None
        except AnchorError:
            return False

    @cached_property
    def adapted(self) -> bool:
        """Tell whether upstream's own adaptation is in the tree, reached or not."""
        try:
            return mode.native_branch(self.view()) is not None
        except AnchorError:
            return False

    @cached_property
    def left_out(self) -> Mapping[str, str]:
        """Name the seams that the tree does without, judged by their premises alone."""
        found: dict[str, str] = {
            name: outcome.status
            for name, outcome in self.outcomes.items()
            if outcome.status in ("not-needed", "withheld")
        }
        # An edit of what is left out is a conflict, and what holds of the tree is as before.
        if self.outcomes["radix_cache"].status == "conflict" and self._ignores_prefix():
            found["radix_cache"] = "withheld"
        return found

    def _ignores_prefix(self) -> bool:
        try:
            return attention.ignores_prefix(self.view()) is not None
        except AnchorError:
            return False

    def view(self) -> View:
        """Look at the tree as a codemod does."""
        return View(self.overlay.fork(), [])

    def source(self, path: PurePosixPath) -> Source:
        """Give a file that is known to be there."""
        source = self.overlay.source(path)
        assert source is not None
        return source

    def module(self, path: PurePosixPath) -> ast.Module:
        """Parse a file.

        Raises:
            NotApplicable: its syntax is newer than this interpreter's.
        """
        if path not in self._trees:
            try:
                text = self.source(path).text.removeprefix(_BOM)
                self._trees[path] = parse(text, str(path))
            except SyntaxError as error:
                raise _newer(path, error) from error
        return self._trees[path]

    def compiles(self, path: PurePosixPath) -> SyntaxError | ValueError | None:
        """Return why a file does not compile, None if it does; see `module`."""
        if path not in self._compiled:
            self._compiled[path] = None
            try:
                compile(self.module(path), str(path), "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                self._compiled[path] = error
        return self._compiled[path]

    def table(self, path: PurePosixPath) -> symtable.SymbolTable:
        """Give the scopes of a file; see `module`."""
        if path not in self._tables:
            try:
                text = self.source(path).text.removeprefix(_BOM)
                self._tables[path] = symtable.symtable(text, str(path), "exec")
            except SyntaxError as error:
                raise _newer(path, error) from error
        return self._tables[path]

    def places(self, seam: str) -> tuple[Place, ...]:
        """List the definitions that a seam edits; where upstream's form is whole, its own.

        Raises:
            NotApplicable: the seam has none in this tree.
        """
        if seam not in self._places:
            self._places[seam] = tuple(self._find_places(seam))
        if not self._places[seam]:
            raise NotApplicable(f"{self.outcomes[seam].status}: the seam edits no definition here")
        return self._places[seam]

    def functions(self, seam: str) -> Iterator[tuple[Place, FunctionNode]]:
        """Yield the functions among a seam's places, or around them, with their nodes."""
        for place in self.places(seam):
            for found in _at(self.module(place.path), {place.block.line}):
                if isinstance(found.node, FunctionNode) and found.node.name == place.block.name:
                    yield place, found.node

    def written(self, seam: str) -> frozenset[str]:
        """Return the words of the lines that a seam would change here, before and after."""
        if self.outcomes[seam].status != "pending":
            return frozenset()
        lines: set[str] = set()
        for target in SERIES[seam].targets(self.view()):
            node = target.spot.node
            texts = (cst.Module([]).code_for_node(each) for each in (node, target.edit(node)))
            before, after = ({line.strip() for line in text.splitlines()} for text in texts)
            lines |= before ^ after
        return frozenset(word for line in lines for word in _WORD.findall(line))

    def near(self, path: PurePosixPath, *names: str) -> Iterator[Found]:
        """Yield the nodes of a file on the lines where any of some names occurs."""
        module, text = self.module(path), self.source(path).text.removeprefix(_BOM)
        ends = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        sought = re.compile("|".join(map(re.escape, names)))
        return _at(module, {bisect(ends, match.start()) for match in sought.finditer(text)})

    def functions_named(self, name: str) -> Iterator[tuple[PurePosixPath, FunctionNode]]:
        """Yield the definitions of a function in the package."""
        for path in self.overlay.mentioning(f"def {name}"):
            for found in self.near(path, f"def {name}"):
                if isinstance(found.node, FunctionNode) and found.node.name == name:
                    yield path, found.node

    def files(self, seam: str) -> tuple[PurePosixPath, ...]:
        """List the files that a seam edits and adds."""
        paths = [place.path for place in self._places_or_none(seam)]
        folder = self.package / PROJECT.vendor_folder
        modules = SERIES[seam].vendors
        if self.native and modules:
            modules = (*modules, symbols.UPSTREAM_OPS)
        paths += [path for m in modules if self.overlay.read(path := folder / f"{m}.py")]
        return tuple(dict.fromkeys(paths))

    def _places_or_none(self, seam: str) -> tuple[Place, ...]:
        try:
            return self.places(seam)
        except NotApplicable:
            return ()

    def _find_places(self, seam: str) -> Iterator[Place]:
        outcome = self.outcomes[seam]
        declared = SERIES[seam]
        if outcome.status in ("not-needed", "withheld"):
            return
        if outcome.status == "upstream" and declared.adapted is None:
            yield from map(self._place, outcome.sites)
            return
        try:
            for target in SERIES[seam].targets(self.view()):
                yield Place(target.spot.path, target.spot.block)
        except AnchorError as error:
            raise NotApplicable(f"its places are not found: {error}") from error

    def _place(self, site: Site) -> Place:
        blocks = self.source(site.path).blocks
        return Place(site.path, next(b for b in blocks if b.qualname == site.symbol))


def _at(module: ast.Module, lines: set[int]) -> Iterator[Found]:
    """Yield the nodes that reach into some lines, leaving out whatever does not."""

    def walk(
        parent: ast.AST, owner: str, function: FunctionNode | None, scope: str
    ) -> Iterator[Found]:
        for node in ast.iter_child_nodes(parent):
            first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
            if first is not None and last is not None:
                first = min([first, *(d.lineno for d in getattr(node, "decorator_list", []))])
                if lines.isdisjoint(range(first, last + 1)):
                    continue
            yield Found(node, parent, owner, function, scope)
            if isinstance(node, ast.ClassDef):
                yield from walk(node, node.name, None, f"{scope}.{node.name}".lstrip("."))
            elif isinstance(node, FunctionNode):
                yield from walk(node, owner, node, f"{scope}.{node.name}".lstrip("."))
            else:
                yield from walk(node, owner, function, scope)

    return walk(module, "", None, "")


def judge(tree: SourceTree | Overlay) -> Judged:
    """Judge a whole series on a tree.

    Raises:
        Refused: a file cannot be read or parsed, or the tree is too old.
    """
    overlay = tree if isinstance(tree, Overlay) else Overlay(tree)
    return Judged(overlay, make_plan(overlay, SERIES))


Check = Callable[[Judged, str], Iterator[Finding]]
"""Yield what is wrong about one seam; raise `NotApplicable` where there is nothing to check."""

OWN: dict[str, list[Check]] = {seam: [] for seam in SERIES}
"""The checks of single seams, as the modules that are imported declare them."""


def check_of(seam: str) -> Callable[[Check], Check]:
    """Declare a check of one seam of the series."""

    def declare(check: Check) -> Check:
        OWN[seam].append(check)
        return check

    return declare


def _newer(path: PurePosixPath, error: SyntaxError) -> NotApplicable:
    return NotApplicable(f"{path}:{error.lineno} has syntax newer than this Python's: {error.msg}")
