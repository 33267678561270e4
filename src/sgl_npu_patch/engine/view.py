"""Find the definitions that a seam reads and edits, cut them out and splice them back."""

from __future__ import annotations

import ast
import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import cast

import libcst as cst

from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.search import find_block, find_call, is_defined
from sgl_npu_patch.engine.text.block import Block, Kind
from sgl_npu_patch.engine.text.fingerprint import Hint
from sgl_npu_patch.engine.text.source import Source

_LINE = re.compile(r"\r\n|\r|\n")
_SHELL = "class _:"
"""An indented definition is parsed inside a class, so that its text stays as it is."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Name one definition in one file and hold its libcst node."""

    path: PurePosixPath
    block: Block
    node: cst.FunctionDef | cst.ClassDef | cst.SimpleStatementLine | cst.If

    @property
    def site(self) -> Site:
        """Return the definition's place in the tree as read."""
        return Site(self.path, self.block.line, self.block.qualname)

    @property
    def function(self) -> cst.FunctionDef:
        """Return the node of a function.

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
    """Look at a package through an overlay and edit it there.

    ``sites`` collects the edits; ``last`` is the place of the spot that was found last.
    """

    overlay: Overlay
    sites: list[Site]
    last: Site | None = None

    @property
    def package(self) -> PurePosixPath:
        """Return the path of the package in the tree."""
        return self.overlay.tree.package

    @property
    def vendor_folder(self) -> PurePosixPath:
        """Return the path of the folder for vendored modules."""
        return self.package / self.overlay.tree.project.vendor_folder

    def find_function(
        self, *names: str, holding: str = "", hint: Callable[[], Hint] = Hint
    ) -> Spot:
        """Find the one function or method with one of these names in the package.

        Args:
            names: plain names; the function may stand in any class of any module.
            holding: text that tells the function from others of its name.
            hint: describes the function where there is none of the names.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._spot(*find_block(self.overlay, names, "function", holding=holding, hint=hint))

    def find_statement(
        self,
        function: str,
        wanted: Callable[[ast.stmt, Sequence[tuple[ast.stmt, bool]]], bool],
        *,
        holding: str,
        sought: str,
    ) -> Spot:
        """Find the one statement inside a long function, and cut out only that.

        Args:
            wanted: judges a statement by itself and by the compound statements above it,
                outermost first, each with whether the statement is in its first block.
            sought: what a conflict says was looked for.

        Raises:
            AnchorError: there is none, or more than one.
        """
        source, block = find_block(self.overlay, (function,), "function", holding=holding)
        shell, text = _shelled(source.cut(block), source.newline)
        spans, key = self.overlay.cache.spans, (sought, shell + text)
        if key not in spans:
            try:
                body = ast.parse(shell + text).body
            except SyntaxError as error:
                raise AnchorError(
                    sought=sought,
                    expected="a function in this interpreter's syntax",
                    found=f"syntax newer than that: {error.msg}",
                    where=(Site(source.path, block.line, block.qualname),),
                    action="run sgl-npu-patch with a newer Python",
                ) from error
            spans[key] = [
                (node.lineno, node.end_lineno or node.lineno)
                for node, above in _statements(body, ())
                if wanted(node, above)
            ]
        found = spans[key]
        shelled = len(_LINE.findall(shell))
        top = block.line - _decorators(_LINE.split(text)) - 1
        if len(found) != 1:
            raise AnchorError(
                sought=sought,
                expected="exactly one",
                found=str(len(found)) if found else "none",
                where=tuple(
                    Site(source.path, top + first - shelled, block.qualname) for first, _ in found
                )
                or (Site(source.path, block.line, block.qualname),),
                action="keep exactly one there, or report the release that has it otherwise",
            )
        first, last = (line - shelled for line in found[0])
        ends = [block.start, *(block.start + m.end() for m in _LINE.finditer(text)), block.end]
        inner = Block(
            "statement", block.name, block.qualname, ends[first - 1], ends[last], top + first
        )
        return self._spot(source, inner)

    def find_assignment(self, *names: str, hint: Callable[[], Hint] = Hint) -> Spot:
        """Find the one module-level assignment to one of these names; see `find_function`.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._spot(*find_block(self.overlay, names, "assignment", hint=hint))

    def find_caller(self, *names: str, hint: Callable[[], Hint] = Hint) -> Spot:
        """Find the one function that calls another, which nothing else in the package uses.

        Args:
            names: the names that the other may have.
            hint: describes the other where there is none of the names.

        Raises:
            AnchorError: there is no call or more than one, or the name is used otherwise.
        """
        return self._spot(*find_call(self.overlay, names, hint))

    def has(self, name: str, kind: Kind) -> bool:
        """Report whether the package defines a name at least once."""
        return is_defined(self.overlay, name, kind)

    def source(self, path: PurePosixPath) -> Source:
        """Return the file that a spot was found in."""
        source = self.overlay.source(path)
        assert source is not None
        return source

    def replace(self, spot: Spot, node: cst.CSTNode) -> None:
        """Put another node in the place of a spot's and note the lines that differ as sites."""
        source = self.source(spot.path)
        block = spot.block if spot.block.kind == "statement" else _same(source, spot.block)
        old = source.cut(block)
        new = self._unparse(old, cast(cst.BaseStatement, node), source.newline)
        _check_piece(spot, *("".join(_shelled(text, source.newline)) for text in (old, new)))
        self._note(spot, old, new)
        self.overlay.write(spot.path, source.splice(block.start, block.end, new))

    def _note(self, spot: Spot, old: str, new: str) -> None:
        before, after = _lines(old), _lines(new)
        hunks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        first = spot.block.line - _decorators(before)
        as_read = before
        if spot.block.kind != "statement":
            as_read = _lines(self._as_read(spot.block, spot.path))
        matches = difflib.SequenceMatcher(None, as_read, before, autojunk=False)
        # What is appended is shown at the last line, since the file may end there.
        last = len(before) - 1
        for tag, start, _, _, _ in hunks:
            if tag != "equal":
                line = first + _line_as_read(matches, min(start, last))
                self.sites.append(Site(spot.path, line, spot.block.qualname))

    def _as_read(self, block: Block, path: PurePosixPath) -> str:
        data = self.overlay.tree.read(path) or b""
        source = self.overlay.cache.sources[(path, data)]
        return source.cut(_same(source, block))

    def _spot(self, source: Source, block: Block) -> Spot:
        text = source.cut(block)
        self.last = site = Site(source.path, block.line, block.qualname)
        nodes: Sequence[cst.CSTNode] = self._faithful(text, source.newline, site).body
        if text[:1] in " \t":
            nodes = cast(cst.ClassDef, nodes[0]).body.body
        if len(nodes) != 1 or not isinstance(
            nodes[0], cst.FunctionDef | cst.ClassDef | cst.SimpleStatementLine | cst.If
        ):
            raise AnchorError(
                sought=block.qualname,
                expected="a definition on lines of its own",
                found=f"{len(nodes)} statements on its lines",
                where=(site,),
                action="put the definition on lines of its own",
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
        return Spot(source.path, block, node)

    def _module(self, text: str, newline: str) -> cst.Module:
        return self.overlay.cache.module("".join(_shelled(text, newline)))

    def _faithful(self, text: str, newline: str, site: Site) -> cst.Module:
        """Parse a piece that libcst prints as it was; form feeds and lone CRs it may not."""
        found = "one that it does not parse"
        action = "write it in older syntax, and an elif as an if of its own"
        with contextlib.suppress(cst.ParserSyntaxError):
            module = self._module(text, newline)
            odd = "\f" in text or "\r" in text.replace("\r\n", "")
            if not odd or module.code == "".join(_shelled(text, newline)):
                return module
            found = "one that it would print otherwise"
            action = "take form feeds and lone carriage returns out of this definition"
        raise AnchorError(
            sought=site.symbol,
            expected="a definition that libcst reads and prints byte for byte",
            found=found,
            where=(site,),
            action=action,
        )

    def _unparse(self, old: str, node: cst.BaseStatement, newline: str) -> str:
        module = self._module(old, newline).with_changes(default_newline=newline)
        if old[:1] not in " \t":
            return module.with_changes(body=[node]).code
        shell = cast(cst.ClassDef, module.body[0])
        body = shell.body.with_changes(body=[node])
        code = module.with_changes(body=[shell.with_changes(body=body)]).code
        return code[len(_SHELL) + len(newline) :]


def _shelled(text: str, newline: str) -> tuple[str, str]:
    return (f"{_SHELL}{newline}" if text[:1] in " \t" else ""), text


def _check_piece(spot: Spot, old: str, new: str) -> None:
    """Insist that an edited piece compiles; then so does its file, which parsed before.

    A piece is whole lines that hold one statement, before and after, at one indentation. One that
    did not compile before has syntax newer than this interpreter's and is left to libcst.
    """
    for text in (new, old):
        try:
            compile(text, str(spot.path), "exec", dont_inherit=True)
        except SyntaxError as error:
            failure = error
        else:
            break
    else:
        return
    if text is old:
        raise AssertionError(f"{spot.site}: the edit does not compile: {failure}") from failure


def _statements(
    body: Sequence[ast.AST], above: tuple[tuple[ast.stmt, bool], ...]
) -> Iterator[tuple[ast.stmt, tuple[tuple[ast.stmt, bool], ...]]]:
    for node in body:
        if isinstance(node, ast.stmt):
            yield node, above
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                step = ((node, field == "body"),) if isinstance(node, ast.stmt) else ()
                yield from _statements(inner, (*above, *step))


def _same(source: Source, block: Block) -> Block:
    """Find a block again after edits before it: its line in the tree as read tells which."""
    key = (block.kind, block.qualname, block.line)
    return next(b for b in source.blocks if (b.kind, b.qualname, b.line) == key)


def _line_as_read(matches: difflib.SequenceMatcher[str], line: int) -> int:
    for a, b, size in reversed(matches.get_matching_blocks()):
        if line >= b and size:
            return a + min(line - b, size)
    return line


def _lines(text: str) -> list[str]:
    """Split whole lines; what follows the last line ending is not one more."""
    lines = _LINE.split(text)
    return lines if lines[-1] else lines[:-1]


def _decorators(lines: list[str]) -> int:
    """Count the decorator lines before the definition's own."""
    for number, line in enumerate(lines):
        if re.match(r"\s*(async\s+def|def|class)\b", line):
            return number
    return 0
