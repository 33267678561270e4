"""Find the places of a package that a seam reads and edits, by symbol."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, TypeVar, cast

import libcst as cst

from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.source import Block, Kind, Source

_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)
_LINE = re.compile(r"\r\n|\r|\n")
_SHELL = "class _:"
"""An indented definition is parsed inside a class, so that its text stays as it is."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Name one definition in one file and hold its libcst node."""

    path: PurePosixPath
    block: Block
    node: cst.FunctionDef | cst.ClassDef | cst.SimpleStatementLine

    @property
    def site(self) -> Site:
        """Give the definition's place in the tree as read."""
        return Site(self.path, self.block.line, self.block.qualname)

    @property
    def function(self) -> cst.FunctionDef:
        """Give the node of a function.

        Raises:
            AnchorError: the spot is no function.
        """
        if not isinstance(self.node, cst.FunctionDef):
            raise AnchorError(
                sought=self.block.qualname,
                expected="a function",
                found=f"a {self.block.kind}",
                where=(self.site,),
            )
        return self.node


@dataclass(slots=True)
class View:
    """Look at a package through an overlay and edit it there; ``sites`` collects the edits."""

    overlay: Overlay
    sites: list[Site]

    @property
    def package(self) -> PurePosixPath:
        """Give the path of the ``sglang`` folder."""
        return self.overlay.tree.package

    def find_function(self, name: str, *, holding: str = "") -> Spot:
        """Find the one function or method of that name in the package.

        Args:
            name: the plain name; it may stand in any class of any module.
            holding: text that tells the function from others of its name.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._find(name, "function", holding)

    def find_assignment(self, name: str) -> Spot:
        """Find the one module-level assignment to a name in the package.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._find(name, "assignment")

    def find_caller(self, name: str) -> Spot:
        """Find the one function that calls another, which nothing else in the package uses.

        Raises:
            AnchorError: there is no call or more than one, or the name is used otherwise.
        """
        uses = [
            (source, use)
            for path in self.overlay.mentioning(name)
            if (source := self.overlay.source(path))
            for use in find_uses(source.text, name)
        ]
        called = [(source, use) for source, use in uses if use.kind == "call"]
        holders = [
            (source, block)
            for source, use in called
            for block in source.blocks
            if block.kind == "function"
            and block.name != name
            and _number(source, block.start) <= use.line < _number(source, block.end)
        ]
        recursive = [
            use
            for source, use in called
            for block in source.named(name, "function")
            if _number(source, block.start) <= use.line < _number(source, block.end)
        ]
        others = [(s, u) for s, u in uses if u.kind == "other"]
        if len(called) - len(recursive) != 1 or len(holders) != 1 or others:
            raise AnchorError(
                sought=f"the caller of {name}",
                expected="exactly one call in the package, inside a function",
                found=f"{len(called) - len(recursive)} calls and {len(others)} other uses",
                where=tuple(Site(s.path, u.line, name) for s, u in called + others),
                action="thread the new arguments through the further uses by hand",
            )
        source, block = holders[0]
        return Spot(source.path, block, _parse(source.cut(block), source, block))

    def has(self, name: str, kind: Kind) -> bool:
        """Tell whether the package defines a name at least once."""
        return any(
            source.named(name, kind)
            for path in self.overlay.mentioning(name)
            if (source := self.overlay.source(path))
        )

    def source(self, path: PurePosixPath) -> Source:
        """Give the file that a spot was found in."""
        source = self.overlay.source(path)
        assert source is not None
        return source

    def replace(self, spot: Spot, node: cst.CSTNode) -> Spot:
        """Put another node in the place of a spot's and note the lines that differ as sites."""
        source = self.source(spot.path)
        block = _same(source, spot.block)
        old = source.cut(block)
        new = _unparse(old, cast(cst.BaseStatement, node), source.newline)
        self._note(spot, old, new)
        edited = source.splice(block.start, block.end, new)
        self.overlay.write(spot.path, edited)
        block = _same(edited, block)
        return Spot(spot.path, block, _parse(edited.cut(block), edited, block))

    def _note(self, spot: Spot, old: str, new: str) -> None:
        before, after = _LINE.split(old), _LINE.split(new)
        hunks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        first = spot.block.line - _decorators(before)
        as_read = _LINE.split(self._as_read(spot.block, spot.path))
        matches = difflib.SequenceMatcher(None, as_read, before, autojunk=False)
        for tag, start, _, _, _ in hunks:
            if tag != "equal":
                line = first + _line_as_read(matches, start)
                self.sites.append(Site(spot.path, line, spot.block.qualname))

    def _as_read(self, block: Block, path: PurePosixPath) -> str:
        data = self.overlay.tree.read(path) or b""
        source = self.overlay.parsed[(path, data)]
        return source.cut(_same(source, block))

    def _find(self, name: str, kind: Kind, holding: str = "") -> Spot:
        found: list[tuple[Source, Block]] = []
        looked: list[Source] = []
        for path in self.overlay.mentioning(name):
            source = self.overlay.source(path)
            if source is None or holding not in source.text:
                continue
            looked.append(source)
            found += [
                (source, block)
                for block in source.named(name, kind)
                if holding in source.cut(block)
            ]
        if len(found) != 1:
            raise AnchorError(
                sought=f"{kind} {name}",
                expected="exactly one definition in the package",
                found=f"{len(found)} definitions" if found else "none",
                where=tuple(Site(s.path, b.line, b.qualname) for s, b in found)
                or tuple(Site(s.path, 0, f"mentions {name}") for s in looked[:3]),
                nearest=self._nearest(name, kind) if not found else "",
                action=(
                    "remove the definition that is not used, or patch this place by hand"
                    if found
                    else "see what took its place upstream and adapt the codemod"
                ),
            )
        source, block = found[0]
        return Spot(source.path, block, _parse(source.cut(block), source, block))

    def _nearest(self, name: str, kind: Kind) -> str:
        parsed = {source.path: source for source in self.overlay.parsed.values()}
        names = {
            block.name: (source.path, block)
            for source in parsed.values()
            for block in source.blocks
            if block.kind == kind
        }
        for close in difflib.get_close_matches(name, names, n=1, cutoff=0.7):
            path, block = names[close]
            return f"{path}:{block.line} {close} (a similar name is not taken)"
        return ""


@dataclass(frozen=True, slots=True)
class Use:
    """Say on which line of a text a name is called, defined or used otherwise."""

    line: int
    kind: Literal["call", "definition", "other"]


def find_uses(text: str, name: str) -> Iterator[Use]:
    """Yield the uses of a name as a function: calls, definitions, and all that is neither.

    A string that equals the name counts as another use (``getattr``), one that contains it does
    not.
    """
    if name not in text:
        return
    tree = ast.parse(text.removeprefix("\ufeff"))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield Use(node.lineno, "definition")
        elif (isinstance(node, ast.Name) and node.id == name) or (
            isinstance(node, ast.Attribute) and node.attr == name
        ):
            yield Use(node.lineno, "call" if id(node) in called else "other")
        elif isinstance(node, ast.Constant) and node.value == name:
            yield Use(node.lineno, "other")
        elif isinstance(node, ast.alias) and node.name == name:
            yield Use(node.lineno, "other")


def _same(source: Source, block: Block) -> Block:
    """Find a block again after edits before it: its line in the tree as read tells which."""
    key = (block.kind, block.qualname, block.line)
    return next(b for b in source.blocks if (b.kind, b.qualname, b.line) == key)


def _number(source: Source, offset: int) -> int:
    return 1 + len(_LINE.findall(source.text[:offset]))


def _line_as_read(matches: difflib.SequenceMatcher[str], line: int) -> int:
    for a, b, size in reversed(matches.get_matching_blocks()):
        if line >= b and size:
            return a + min(line - b, size)
    return line


def _decorators(lines: list[str]) -> int:
    """Count the decorator lines before the definition's own."""
    for number, line in enumerate(lines):
        if re.match(r"\s*(async\s+def|def|class)\b", line):
            return number
    return 0


def _parse(
    text: str, source: Source, block: Block
) -> cst.FunctionDef | cst.ClassDef | cst.SimpleStatementLine:
    nodes = _module(text, source.newline).body
    if text[:1] in " \t":
        nodes = cast(cst.ClassDef, nodes[0]).body.body  # type: ignore[assignment]
    site = Site(source.path, block.line, block.qualname)
    if len(nodes) != 1 or not isinstance(
        nodes[0], cst.FunctionDef | cst.ClassDef | cst.SimpleStatementLine
    ):
        raise AnchorError(
            sought=block.qualname,
            expected="a definition on lines of its own",
            found=f"{len(nodes)} statements on its lines",
            where=(site,),
        )
    node = nodes[0]
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) != 1:
        raise AnchorError(
            sought=block.qualname,
            expected="an assignment on a line of its own",
            found=f"{len(node.body)} statements on one line",
            where=(site,),
            action="put the assignment on a line of its own",
        )
    return node


def _module(text: str, newline: str) -> cst.Module:
    shell = f"{_SHELL}{newline}" if text[:1] in " \t" else ""
    return cst.parse_module(shell + text)


def _unparse(old: str, node: cst.BaseStatement, newline: str) -> str:
    module = _module(old, newline)
    if old[:1] not in " \t":
        return module.with_changes(body=[node]).code
    shell = cast(cst.ClassDef, module.body[0])
    body = shell.body.with_changes(body=[node])
    code = module.with_changes(body=[shell.with_changes(body=body)]).code
    return code[len(_SHELL) + len(newline) :]
