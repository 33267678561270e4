"""Find the places of a package that a seam reads and edits, by symbol."""

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

from sgl_npu_patch.engine.errors import AnchorError, Refused, Site
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.text.block import Block, Kind
from sgl_npu_patch.engine.text.source import Source

_LINE = re.compile(r"\r\n|\r|\n")
_LOOKS: dict[Kind, bytes] = {
    "function": rb"\bdef\s+%s\b",
    "class": rb"\bclass\s+%s\b",
    "assignment": rb"(?m)^[^\r\n#]*\b%s\b[^\r\n]*=",
    "import": rb"\b%s\b",
    "statement": rb"\b%s\b",
}
"""What a file must contain to define a name; cheaper to see than to outline it."""
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

    def find_function(self, *names: str, holding: str = "") -> Spot:
        """Find the one function or method with one of these names in the package.

        Args:
            names: plain names; the function may stand in any class of any module.
            holding: text that tells the function from others of its name.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._find(names, "function", holding)

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
        source, block = self._find_block((function,), "function", holding)
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

    def find_assignment(self, *names: str) -> Spot:
        """Find the one module-level assignment to one of these names in the package.

        Raises:
            AnchorError: there is none, or more than one.
        """
        return self._find(names, "assignment")

    def find_caller(self, *names: str) -> Spot:
        """Find the one function that calls another, which nothing else in the package uses.

        Args:
            names: the names that the other may have.

        Raises:
            AnchorError: there is no call or more than one, or the name is used otherwise.
        """
        named = " or ".join(names)
        uses = [
            (source, use, name)
            for name in names
            for path in self.overlay.mentioning(name)
            if (source := self.overlay.source(path))
            for use in self.overlay.cache.uses_of(name, source.text)
        ]
        called = [
            (source, use, name)
            for source, use, name in uses
            if use.kind == "call" and not source.around(use.line, name)
        ]
        holders = [
            (source, block) for source, use, _ in called for block in source.around(use.line)
        ]
        others = [(s, u, name) for s, u, name in uses if u.kind == "other"]
        if len(called) != 1 or len(holders) != 1 or others:
            raise AnchorError(
                sought=f"the caller of {named}",
                expected="exactly one call in the package, inside a function",
                found=f"{len(called)} calls and {len(others)} other uses",
                where=tuple(Site(s.path, u.line, name) for s, u, name in called + others),
                action="leave one call, inside a function, and no other use",
            )
        source, block = holders[0]
        return self._spot(source, block)

    def has(self, name: str, kind: Kind) -> bool:
        """Tell whether the package defines a name at least once."""
        return any(source.named(name, kind) for source in self._defining(name, kind))

    def source(self, path: PurePosixPath) -> Source:
        """Give the file that a spot was found in."""
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

    def _find(self, names: tuple[str, ...], kind: Kind, holding: str = "") -> Spot:
        return self._spot(*self._find_block(names, kind, holding))

    def _find_block(self, names: tuple[str, ...], kind: Kind, holding: str) -> tuple[Source, Block]:
        found = [
            (source, block)
            for name in names
            for source in self._defining(name, kind, holding)
            for block in source.named(name, kind)
            if holding in source.cut(block)
        ]
        if len(found) != 1:
            named = " or ".join(names)
            near = (self._nearest(name, kind) for name in reversed(names))
            close = next(filter(None, near), None) if not found else None
            raise AnchorError(
                sought=f"{kind} {named}",
                expected="exactly one definition in the package",
                found=f"{len(found)} definitions" if found else "none",
                where=tuple(Site(s.path, b.line, b.qualname) for s, b in found)
                or tuple(
                    Site(path, 0, f"mentions {name}")
                    for name in names
                    for path in self.overlay.mentioning(name)[:3]
                )
                or (close or Site(self.package / "__init__.py", 0, f"without {named}"),),
                nearest=f"{close} (a similar name is not taken)" if close else "",
                action=(
                    "keep one of them: remove or rename the others"
                    if found
                    else "restore it under this name, or report the release that has none"
                ),
            )
        _check_in_force(*found[0])
        return found[0]

    def _defining(self, name: str, kind: Kind, holding: str = "") -> Iterator[Source]:
        """Outline only the files in which a definition of the name can stand."""
        for path in self.overlay.mentioning(name):
            if self._may_define(path, name, kind, holding):
                yield self.source(path)

    def _may_define(self, path: PurePosixPath, name: str, kind: Kind, holding: str) -> bool:
        if path in self.overlay.pending:
            return True
        known, key = self.overlay.cache.defining, (path, name + holding, kind)
        if key not in known:
            data = self.overlay.read(path) or b""
            looks = re.compile(_LOOKS[kind] % re.escape(name.encode()))
            known[key] = holding.encode() in data and looks.search(data) is not None
        return known[key]

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

    def _nearest(self, name: str, kind: Kind) -> Site | None:
        words = name.strip("_").split("_")
        pairs = sorted({"_".join(words[i : i + 2]) for i in range(len(words))}, key=len)[-3:]
        paths = {p for part in (name, *pairs) for p in self.overlay.mentioning(part)[:3]}
        looked = [source for path in sorted(paths) if (source := self._readable(path))]
        parsed = {s.path: s for s in (*self.overlay.cache.sources.values(), *looked)}
        names = {
            block.name: (source.path, block)
            for source in parsed.values()
            for block in source.blocks
            if block.kind == kind
        }
        for close in difflib.get_close_matches(name, names, n=1, cutoff=0.7):
            path, block = names[close]
            return Site(path, block.line, close)
        return None

    def _readable(self, path: PurePosixPath) -> Source | None:
        """Give a file that is looked at for no more than a hint."""
        try:
            return self.overlay.source(path)
        except Refused:
            return None


def _check_in_force(source: Source, block: Block) -> None:
    """Insist that a definition is the one that its name stands for whenever the file is loaded."""
    holders = [b for b in source.blocks if b.start <= block.start and block.end <= b.end]
    inside = [b for b in holders if b.kind == "function" and b is not block]
    guards = [guard for b in holders if b.kind == "class" or b is block for guard in b.guards]
    again = [
        other
        for kind in _REBINDING[block.kind]
        for other in (source.named(block.name, kind) if "." not in block.qualname else ())
    ]
    if not (inside or guards or again):
        return
    what = f"inside the function {inside[-1].name}" if inside else f"under `{' '.join(guards)}`"
    raise AnchorError(
        sought=f"{block.kind} {block.qualname}",
        expected="a definition of the module or of a class, under no condition and not replaced",
        found=f"one that an {again[0].kind} replaces" if again else f"one {what}",
        where=tuple(Site(source.path, b.line, b.qualname) for b in (block, *again)),
        action="define it once, of the module or of a class, under no condition",
    )


_REBINDING: dict[Kind, tuple[Kind, ...]] = {
    "function": ("assignment", "import"),
    "class": (),
    "assignment": ("import",),
    "import": (),
    "statement": (),
}
"""What else must not bind a definition's name in its module."""


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
