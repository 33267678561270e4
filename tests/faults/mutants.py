"""Make faults mechanically from every token that the series inserts or changes.

Comments, annotations and docstrings are left alone: no check of what a tree does may see them.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath

KINDS = {
    "drop": "drop a statement, an argument, a parameter, an entry or an operand",
    "swap": "swap adjacent arguments, parameters or entries",
    "negate": "negate a guard, or turn a comparison or an operator round",
    "constant": "change a constant",
    "rename": "rename to a sibling symbol",
    "call": "delete a call or a subscript, keeping what it is applied to",
    "undo": "undo one place of the patch",
}

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_IGNORED = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
)
_SILENT = re.compile(r"[(),.:\[\]{}=]+")
"""Tokens that say nothing by themselves."""

Siblings = Callable[[str, str], Iterable[str]]
"""Name what stands beside an attribute's name on an object, by the object's source text."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Hold one fault: the text between two offsets of a file replaced by another.

    ``key`` names it apart from line numbers, so that the same fault of several releases is one.
    """

    path: PurePosixPath
    kind: str
    line: int
    start: int
    end: int
    new: str
    key: str

    def applied(self, text: str) -> str:
        """Give the file with the fault in it."""
        return text[: self.start] + self.new + text[self.end :]


@dataclass(frozen=True, slots=True)
class _Edit:
    kind: str
    start: int
    end: int
    new: str


class _File:
    """Look at one patched file, and at what of it the patch brought."""

    def __init__(self, path: PurePosixPath, before: str, after: str, siblings: Siblings) -> None:
        self.path = path
        self.text = after
        self.before = before
        self.siblings = siblings
        self.module = ast.parse(after)
        self._starts = [0]
        for line in _lines(after):
            self._starts.append(self._starts[-1] + len(line))
        self.tokens, self.undone = _brought(before, after, self._starts)
        self.parents = {
            child: parent
            for parent in ast.walk(self.module)
            for child in ast.iter_child_nodes(parent)
        }

    def at(self, line: int, column: int) -> int:
        """Turn a place of the syntax tree, whose columns count bytes, into an offset."""
        start = self._starts[line - 1]
        text = self.text[start : self._starts[line]]
        return start + len(text.encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Give a node's offsets."""
        first, last = _positioned(node), _positioned(node)
        return (
            self.at(first.lineno, first.col_offset),
            self.at(last.end_lineno or 0, last.end_col_offset or 0),
        )

    def cut(self, node: ast.AST) -> str:
        """Give a node's text."""
        start, end = self.span(node)
        return self.text[start:end]

    def is_new(self, start: int, end: int) -> bool:
        """Tell whether some token between two offsets is the patch's."""
        return any(start <= a and b <= end for a, b in self.tokens)

    def all_new(self, start: int, end: int) -> bool:
        """Tell whether no token between two offsets is the release's own."""
        return self.is_new(start, end) and not any(
            start <= a and b <= end for a, b in self._old_tokens
        )

    @cached_property
    def _old_tokens(self) -> list[tuple[int, int]]:
        return [s for s, _ in _tokens(self.text, self._starts) if s not in self.tokens]

    @cached_property
    def unread(self) -> list[tuple[int, int]]:
        """Give the spans of annotations and docstrings."""
        found = []
        for node in ast.walk(self.module):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
                found.append(self.span(node.annotation))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
                found.append(self.span(node.returns))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found.append(self.span(node))
        return found

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """Give the function around a node."""
        at: ast.AST | None = self.parents.get(node)
        while at is not None and not isinstance(at, ast.FunctionDef):
            at = self.parents.get(at)
        return at

    def scope(self, offset: int) -> str:
        """Name the innermost definition at an offset, its decorators counted in."""
        names = [name for start, end, name in self._definitions if start <= offset < end]
        return ".".join(names) or "module"

    @cached_property
    def _definitions(self) -> list[tuple[int, int, str]]:
        return sorted(
            (
                min([self.span(node), *map(self.span, node.decorator_list)])[0],
                self.span(node)[1],
                node.name,
            )
            for node in ast.walk(self.module)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        )

    def reached(self) -> Iterator[ast.AST]:
        """Yield the nodes on the lines of the patch's tokens."""
        lines = {bisect(self._starts, start) for start, _ in self.tokens}
        for node in ast.walk(self.module):
            first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
            if isinstance(node, ast.arguments | ast.comprehension) or (
                first and last and not lines.isdisjoint(range(first, last + 1))
            ):
                yield node


def mutants(
    path: PurePosixPath, before: str, after: str, siblings: Siblings = lambda *_: ()
) -> list[Mutant]:
    """Make every mutant of what one text of a file has and the other has not.

    Args:
        before: empty for a file that the patch adds.
    """
    file = _File(path, before, after, siblings)
    found: list[Mutant] = []
    seen: set[str] = set()
    keys: Counter[str] = Counter()
    for edit in sorted(_edits(file), key=lambda e: (e.start, e.end, e.kind, e.new)):
        if any(a <= edit.start and edit.end <= b for a, b in file.unread):
            continue
        text = file.text[: edit.start] + edit.new + file.text[edit.end :]
        if text == after or text in seen:
            continue
        seen.add(text)
        old, new = (" ".join(part.split()) for part in (after[edit.start : edit.end], edit.new))
        scope = file.scope(edit.start)
        key = f"{path.name} {scope}: {old or '(nothing)'} -> {new or '(nothing)'}"
        keys[key] += 1
        if keys[key] > 1:
            key += f" #{keys[key]}"
        line = after.count("\n", 0, edit.start) + 1
        found.append(Mutant(path, edit.kind, line, edit.start, edit.end, edit.new, key))
    return found


def compiles(text: str) -> bool:
    """Tell whether a mutant can be executed at all."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def untouched(path: PurePosixPath, before: str, after: str, made: Iterable[Mutant]) -> list[str]:
    """Name the tokens of the patch that no mutant reaches, apart from punctuation."""
    file = _File(path, before, after, lambda *_: ())
    spans = [(m.start, m.end) for m in made]
    return [
        after[a:b]
        for a, b in sorted(file.tokens)
        if not _SILENT.fullmatch(after[a:b])
        and not any(s <= a and b <= e for s, e in (*spans, *file.unread))
    ]


def _edits(file: _File) -> Iterator[_Edit]:
    for start, end, old in file.undone:
        yield _Edit("undo", start, end, old)
        if start == end:
            yield from _beside_deletion(file, start)
    for node in file.reached():
        for make in _MAKERS:
            yield from make(file, node)


def _beside_deletion(file: _File, offset: int) -> Iterator[_Edit]:
    """Take out the statements on either side of one that the patch took out."""
    for node in ast.walk(file.module):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            start, end = file.span(node)
            lines = file.text[min(end, offset) : max(start, offset)]
            if lines.count("\n") <= 1 and not lines.strip():
                yield _Edit("drop", start, end, "pass")


def _statements(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.stmt):
        return
    start, end = file.span(node)
    if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
        header = file.span(node.body[0])[0] - 1
        if not (file.all_new(start, end) or file.is_new(start, header)):
            return
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        if not file.all_new(start, end):
            return
    elif not file.is_new(start, end):
        return
    yield _Edit("drop", start, end, "pass")
    if isinstance(node, ast.Return) and node.value is not None:
        yield _Edit("constant", *file.span(node.value), "None")
    if isinstance(node, ast.Try) and not node.handlers:
        header = file.text.index("finally", file.span(node.body[-1])[1])
        between = file.text[start + 3 : header]
        yield _Edit("negate", start, header + 7, f"if True{between}if True")


def _guards(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.If | ast.IfExp | ast.While | ast.comprehension):
        return
    tests = node.ifs if isinstance(node, ast.comprehension) else [node.test]
    for test in tests:
        start, end = file.span(test)
        if not file.is_new(start, end):
            continue
        # Parentheses around a test are not the test's.
        yield _Edit("negate", start, end, f"not ({file.text[start:end]})")
        for value in ("True", "False"):
            yield _Edit("negate", start, end, value)


def _operators(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.UnaryOp):
        start, end = file.span(node)
        if file.is_new(start, file.span(node.operand)[0]):
            yield _Edit("negate", start, end, file.cut(node.operand))
        return
    operands, operators = _operation(node)
    for (left, right), operator in zip(pairwise(operands), operators, strict=True):
        start, end = file.span(left)[1], file.span(right)[0]
        known = _OPERATORS.get(type(operator))
        if known and file.is_new(start, end):
            sign, other = known
            at = re.search(rf"(?<![\w<>=!*]){re.escape(sign)}(?![\w<>=*])", file.text[start:end])
            if at:
                yield _Edit("negate", start + at.start(), start + at.end(), other)


def _operation(node: ast.AST) -> tuple[list[ast.expr], list[ast.AST]]:
    """Give the operands of a node and what stands between them."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators], [*node.ops]
    if isinstance(node, ast.BoolOp):
        return node.values, [node.op] * (len(node.values) - 1)
    if isinstance(node, ast.BinOp):
        return [node.left, node.right], [node.op]
    return [], []


def _operands(file: _File, node: ast.AST) -> Iterator[_Edit]:
    """Drop an operand of two, and negate one of a condition."""
    if not isinstance(node, ast.BoolOp | ast.BinOp):
        return
    operands, _ = _operation(node)
    if len(operands) == 2:
        for dropped, kept in (operands, operands[::-1]):
            if file.all_new(*file.span(dropped)):
                yield _Edit("drop", *file.span(node), file.cut(kept))
    for operand in operands if isinstance(node, ast.BoolOp) else ():
        if file.is_new(*file.span(operand)):
            yield _Edit("negate", *file.span(operand), f"(not {file.cut(operand)})")


def _members(file: _File, node: ast.AST) -> Iterator[_Edit]:
    """Drop and swap what stands in a list."""
    for members in _lists(node):
        for member in members:
            if file.all_new(*_whole(file, node, member)):
                yield _without(file, *_whole(file, node, member))
        for left, right in pairwise(members):
            if file.is_new(*file.span(left)) or file.is_new(*file.span(right)):
                yield _swapped(file, left, right)


def _lists(node: ast.AST) -> list[list[ast.AST]]:
    if isinstance(node, ast.Call):
        return [[*node.args, *node.keywords]]
    if isinstance(node, ast.arguments):
        return [[*node.posonlyargs, *node.args], [*node.kwonlyargs]]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [[*node.elts]]
    if isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) > 1:
        return [[*node.names]]
    return []


def _values(file: _File, node: ast.AST) -> Iterator[_Edit]:
    """Swap the values of adjacent names, and drop a name with its value."""
    if isinstance(node, ast.Call):
        values = [keyword.value for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        values = node.values
        for key, value in zip(node.keys, values, strict=True):
            if key is not None and file.all_new(file.span(key)[0], file.span(value)[1]):
                yield _without(file, file.span(key)[0], file.span(value)[1])
    else:
        return
    for left, right in pairwise(values):
        if file.is_new(*file.span(left)) or file.is_new(*file.span(right)):
            yield _swapped(file, left, right)


def _defaults(file: _File, node: ast.AST) -> Iterator[_Edit]:
    """Give a parameter a default, and take one away."""
    if not isinstance(node, ast.arguments):
        return
    given = _with_default(node)
    for parameter in (*node.args, *node.kwonlyargs):
        end = file.span(parameter)[1]
        if parameter in given:
            if file.is_new(*file.span(given[parameter])):
                yield _Edit("drop", end, file.span(given[parameter])[1], "")
        elif file.is_new(*file.span(parameter)):
            yield _Edit("constant", end, end, " = None")


def _with_default(node: ast.arguments) -> dict[ast.arg, ast.expr]:
    given = dict(zip(node.args[len(node.args) - len(node.defaults) :], node.defaults, strict=True))
    given |= {a: d for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d is not None}
    return given


def _whole(file: _File, node: ast.AST, member: ast.AST) -> tuple[int, int]:
    start, end = file.span(member)
    if isinstance(node, ast.arguments) and isinstance(member, ast.arg):
        default = _with_default(node).get(member)
        end = file.span(default)[1] if default is not None else end
    return start, end


def _swapped(file: _File, left: ast.AST, right: ast.AST) -> _Edit:
    (start, middle), (second, end) = file.span(left), file.span(right)
    new = file.text[second:end] + file.text[middle:second] + file.text[start:middle]
    return _Edit("swap", start, end, new)


def _without(file: _File, start: int, end: int) -> _Edit:
    """Take a member out of its list, with the comma behind or in front of it."""
    behind = re.compile(r"\s*,[ \t]*").match(file.text, end)
    if behind:
        return _Edit("drop", start, behind.end(), "")
    front = re.compile(r",\s*\Z").search(file.text[:start])
    return _Edit("drop", front.start() if front else start, end, "")


def _constants(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.Constant) or not file.is_new(*file.span(node)):
        return
    if isinstance(file.parents.get(node), ast.JoinedStr):
        return
    start, end = file.span(node)
    value = node.value
    new: list[object] = []
    if isinstance(value, bool):
        new = [not value]
    elif isinstance(value, int):
        new = [value + 1, value - 1] if value else [1]
    elif isinstance(value, float):
        new = [value + 1.0, value / 2]
    elif isinstance(value, str):
        new = [*_other_strings(file, node, value), f"{value}x", ""]
    elif value is None and not isinstance(file.parents.get(node), ast.Compare):
        new = [True]
    for other in new:
        if other != value:
            yield _Edit("constant", start, end, _quoted(other))


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def _other_strings(file: _File, node: ast.AST, value: str) -> list[str]:
    """Find a string that stands beside this one: in the same list, else in the same function."""
    around = file.parents.get(node)
    if not isinstance(around, ast.List | ast.Tuple | ast.Set | ast.Dict):
        around = file.function_of(node)
    if around is None:
        return []
    strings = [
        n.value
        for n in ast.walk(around)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    short = [s for s in dict.fromkeys(strings) if s != value and re.fullmatch(r"[\w./-]+", s)]
    return short[-1:]


def _names(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.Name) and file.is_new(*file.span(node)):
        for other in _nearby(node.id, _in_scope(file, node)):
            yield _Edit("rename", *file.span(node), other)
    elif isinstance(node, ast.Attribute):
        end = file.span(node)[1]
        start = end - len(node.attr)
        if file.is_new(start, end):
            on = ast.unparse(node.value)
            others = [*_attributes(file, on), *file.siblings(on, node.attr)]
            for other in _nearby(node.attr, others):
                yield _Edit("rename", start, end, other)
            parent = file.parents.get(node)
            if not (isinstance(parent, ast.Call) and parent.func is node) and isinstance(
                node.ctx, ast.Load
            ):
                yield _Edit("call", *file.span(node), file.cut(node.value))
    elif isinstance(node, ast.arg) and file.is_new(*file.span(node)):
        start = file.span(node)[0]
        yield _Edit("rename", start, start + len(node.arg), f"{node.arg}_renamed")
    elif isinstance(node, ast.alias) and file.is_new(*file.span(node)):
        parent = file.parents.get(node)
        on = getattr(parent, "module", None) or ""
        for other in _nearby(node.name, file.siblings(f"import {on}", node.name)):
            yield _Edit("rename", *file.span(node), f"{other} as {node.asname or node.name}")
    elif isinstance(node, ast.keyword) and node.arg and file.is_new(*file.span(node)):
        start = file.span(node)[0]
        yield _Edit("rename", start, start + len(node.arg), f"{node.arg}_renamed")
    elif isinstance(node, ast.ImportFrom) and node.module and file.is_new(*file.span(node)):
        start = file.text.index(node.module, file.span(node)[0])
        package, _, name = node.module.rpartition(".")
        for other in _nearby(name, file.siblings(f"import {package}", name)):
            yield _Edit("rename", start, start + len(node.module), f"{package}.{other}")


def _in_scope(file: _File, node: ast.Name) -> list[str]:
    """List the names of the same kind that a node could have meant, in their order."""
    parent = file.parents.get(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return [
            n.func.id
            for n in ast.walk(file.module)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        ]
    function = file.function_of(node)
    if function is None:
        return [n.id for s in file.module.body if isinstance(s, ast.Assign) for n in _stored(s)]
    parameters = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
    # A mutant that reads a variable before it is set would be no harder to find than a typo.
    here = file.span(node)[0]
    local = [n.id for n in _stored(function) if file.span(n)[0] < here]
    shared = [
        name
        for s in ast.walk(function)
        if isinstance(s, ast.Global | ast.Nonlocal)
        for name in s.names
    ]
    names = [*parameters, *local, *shared]
    if node.id not in names:
        names += [n.id for s in file.module.body if isinstance(s, ast.Assign) for n in _stored(s)]
    return names


def _stored(root: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(root) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _attributes(file: _File, on: str) -> list[str]:
    return [
        n.attr
        for n in ast.walk(file.module)
        if isinstance(n, ast.Attribute) and ast.unparse(n.value) == on
    ]


def _nearby(name: str, others: Iterable[str]) -> list[str]:
    """Choose the neighbours of a name: the one before, the one behind, and those most like it."""
    ordered = list(dict.fromkeys(others))
    if name not in ordered:
        ordered.append(name)
    at = ordered.index(name)
    chosen = [ordered[i] for i in (at - 1, at + 1) if 0 <= i < len(ordered)]
    rest = [other for other in ordered if other not in (*chosen, name)]
    return [*chosen, *difflib.get_close_matches(name, rest, n=2, cutoff=0.5)]


def _calls(file: _File, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.Call):
        start, end = file.span(node)
        if not file.is_new(file.span(node.func)[1] - 1, end) and not file.is_new(
            *file.span(node.func)
        ):
            return
        if not file.all_new(*file.span(node.func)):
            return
        for argument in node.args[:1]:
            if not isinstance(argument, ast.Starred):
                yield _Edit("call", start, end, file.cut(argument))
        if isinstance(node.func, ast.Attribute):
            yield _Edit("call", start, end, file.cut(node.func.value))
        if not node.args:
            yield _Edit("call", start, end, file.cut(node.func))
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        start, end = file.span(node)
        if file.is_new(file.span(node.value)[1], end):
            yield _Edit("call", start, end, file.cut(node.value))


_MAKERS = (
    _statements,
    _guards,
    _operators,
    _operands,
    _members,
    _values,
    _defaults,
    _constants,
    _names,
    _calls,
)


def _positioned(node: ast.AST) -> ast.expr:
    # Every node that is asked for has a place; typeshed gives it to some classes only.
    return node  # type: ignore[return-value]


def _lines(text: str) -> list[str]:
    """Split as Python does, which does not end a line at a form feed."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _tokens(text: str, starts: list[int]) -> list[tuple[tuple[int, int], str]]:
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type not in _IGNORED and token.string:
            (row, column), (last, end) = token.start, token.end
            found.append(((starts[row - 1] + column, starts[last - 1] + end), token.string))
    return found


def _brought(
    before: str, after: str, starts: list[int]
) -> tuple[frozenset[tuple[int, int]], list[tuple[int, int, str]]]:
    """Give the spans of the tokens that the patch brought, and each place with its old text."""
    old, new = _lines(before), _lines(after)
    tokens = _tokens(after, starts)
    if not before:
        return frozenset(span for span, _ in tokens), []
    brought: set[tuple[int, int]] = set()
    undone = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in _line_changes(old, new, matcher):
        undone.append((starts[c], starts[d], "".join(old[a:b])))
        inside = [t for t in tokens if starts[c] <= t[0][0] < starts[d]]
        if tag == "insert":
            brought.update(span for span, _ in inside)
            continue
        known = re.findall(r"\w+|[^\w\s]", "".join(old[a:b]))
        pieces = [t for t in inside if t[1].strip()]
        own = [re.findall(r"\w+|[^\w\s]", text) for _, text in pieces]
        flat = [(i, word) for i, words in enumerate(own) for word in words]
        words = difflib.SequenceMatcher(None, known, [w for _, w in flat], autojunk=False)
        for kind, _, _, e, f in words.get_opcodes():
            if kind != "equal":
                brought.update(pieces[i][0] for i, _ in flat[e:f])
    return frozenset(brought), undone


def _line_changes(
    old: list[str], new: list[str], matcher: difflib.SequenceMatcher[str]
) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the changed lines; long files are compared without their equal ends."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    matcher.set_seqs(old[head : len(old) - tail], new[head : len(new) - tail])
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            yield tag, a + head, b + head, c + head, d + head
