"""Refactor a release, at random but without changing what it does: one function per kind.

What a refactoring adds is called ``noted`` something, by which the oracle takes it out again.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import PurePosixPath
from random import Random

import black

from sgl_npu_patch.engine.text.source import read_source
from tests.refactor.project import (
    DISPATCH,
    FUNCTIONS,
    HANDLER,
    LISTS,
    MODE,
    SAMPLER_FUNCTIONS,
    SAMPLER_METHODS,
    Case,
    Place,
    base,
    places,
)

Edit = tuple[int, int, str]
"""Replace the characters from the first offset to the second."""

NOTED = "noted"


def moved_in_file(rng: Random, version: str) -> Case:
    """Move a function or method before or behind another of its file or class."""
    place = _some(rng, version, FUNCTIONS)
    source, block = place.source, place.block
    scope = block.qualname.removesuffix(block.name)
    others = [
        other
        for other in source.blocks
        if other.kind == "function"
        and other.qualname == scope + other.name
        and not other.guards
        and other is not block
        and "property" not in source.cut(other)
        and not (place.owner is None and other.start < _behind_imports(source.text))
    ]
    if not others:
        raise LookupError(block.name)
    other = rng.choice(others)
    at = rng.choice((other.start, other.end))
    text = source.cut(block)
    edits = [(block.start, block.end, ""), (at, at, f"\n{text}\n")]
    return _case(version, place, _edited(source.text, edits))


def moved_to_module(rng: Random, version: str) -> Case:
    """Move a list, a function or all of a module to a new one, and import it back."""
    names = (*LISTS, DISPATCH, *SAMPLER_FUNCTIONS, "mode")
    known = places(version)
    name = rng.choice([n for n in names if n in known or n == "mode"])
    place = known[MODE[0] if name == "mode" else name]
    source, text = place.source, place.source.text
    path = place.path.with_name(f"{NOTED}_{rng.randrange(99)}.py")
    module = ".".join(path.with_suffix("").parts)
    files = dict(base(version))
    if name == "mode":
        bound = sorted({b.name for b in source.blocks if b.qualname == b.name and not b.guards})
        files[path] = text.encode()
        joined = ", ".join(n for n in bound if n != "annotations")
        files[place.path] = f"from {module} import ({joined})  # noqa\n".encode()
        return Case(version, name, files)
    head = "" if name in LISTS else _head(text, place)
    files[path] = f"{head}\n\n{place.text}".encode()
    line = rng.choice(
        (f"from {module} import {name}\n", f"from {module} import (\n    {name},\n)\n")
    )
    if rng.random() < 0.5:
        edits = [(place.block.start, place.block.end, line)]
    else:
        at = _behind_imports(text)
        edits = [(at, at, line), (place.block.start, place.block.end, "")]
    files[place.path] = _edited(text, edits).encode()
    return Case(version, name, files)


def moved_to_base(rng: Random, version: str) -> Case:
    """Move a method to a new base class, in its own file or another."""
    place = _some(rng, version, (HANDLER, *SAMPLER_METHODS, "forward_extend"))
    text, owner = place.source.text, place.owner
    assert owner is not None
    name = f"Noted{rng.choice(('Base', 'Mixin'))}{rng.randrange(99)}"
    files = dict(base(version))
    body = place.text
    header = re.compile(rf"class {owner.name}(?:\((.*?)\))?:", re.DOTALL)
    match = header.search(text, owner.start)
    assert match is not None
    bases = [name, *([match.group(1)] if match.group(1) else [])]
    new_header = f"class {owner.name}({', '.join(bases)}):"
    edits: list[Edit] = [
        (match.start(), match.end(), new_header),
        (place.block.start, place.block.end, ""),
    ]
    kind = f"class {name}:\n{body}\n\n"
    if rng.random() < 0.5:
        edits.append((owner.start, owner.start, kind))
    else:
        path = place.path.with_name(f"{NOTED}_base.py")
        files[path] = f"{_head(text, place)}\n\n{kind}".encode()
        module = ".".join(path.with_suffix("").parts)
        at = _behind_imports(text)
        edits.append((at, at, f"from {module} import {name}\n"))
    files[place.path] = _edited(text, edits).encode()
    return Case(version, place.block.name, files)


def locals_renamed(rng: Random, version: str) -> Case:
    """Rename up to three local variables of a function."""
    place = _some(rng, version, FUNCTIONS)
    tree, text = _parsed(place)
    shared = {
        n for s in ast.walk(tree) if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names
    }
    stored = {
        n.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id not in shared
    }
    # An f-string's parts have no positions of their own before Python 3.12.
    fixed = {
        n.id
        for f in ast.walk(tree)
        if isinstance(f, ast.JoinedStr)
        for n in ast.walk(f)
        if isinstance(n, ast.Name)
    } | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    handlers = {h.name for h in ast.walk(tree) if isinstance(h, ast.ExceptHandler) and h.name}
    names = sorted(stored - fixed - handlers)
    if not names:
        raise LookupError(place.block.name)
    chosen = {n: f"{n}_{rng.choice('abc')}" for n in rng.sample(names, min(len(names), 3))}
    edits = [
        (*_span(text, n), chosen[n.id])
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and n.id in chosen
    ]
    return Case(
        version,
        place.block.name,
        _put(version, place, _edited(text, edits)),
        renamed={new: old for old, new in chosen.items()},
    )


def reformatted(rng: Random, version: str) -> Case:
    """Format a file anew, with another line length and perhaps other quotes."""
    place = _some(rng, version, (*FUNCTIONS, *LISTS))
    length = rng.choice((60, 79, 100, 120, 160))
    single = rng.random() < 0.5
    mode = black.Mode(
        line_length=length,
        string_normalization=not single,
        magic_trailing_comma=rng.random() < 0.5,
    )
    indent = _indent(place.text)
    text = textwrap.dedent(place.text)
    if single:
        text = _single_quoted(text)
    text = black.format_str(text, mode=mode)
    return Case(version, place.block.name, _put(version, place, _indented(text, indent)))


def parenthesised_and_commented(rng: Random, version: str) -> Case:
    """Put brackets around values and tests, and comments above and behind statements."""
    place = _some(rng, version, (*FUNCTIONS, *LISTS))
    tree, text = _parsed(place)
    edits: list[Edit] = []
    for node in ast.walk(tree):
        value = getattr(node, "test" if isinstance(node, ast.If) else "value", None)
        if (
            isinstance(node, ast.Assign | ast.Return | ast.If)
            and isinstance(value, ast.expr)
            and rng.random() < 0.4
        ):
            first, last = _span(text, value)
            if not _elif(text, node):
                edits += [(first, first, "("), (last, last, ")")]
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
            line = _line_start(text, node)
            if line is not None and rng.random() < 0.3 and not _elif(text, node):
                edits.append((line, line, " " * node.col_offset + "# noted: a remark\n"))
            if isinstance(node, ast.Assign | ast.Expr | ast.Return) and rng.random() < 0.3:
                end = _span(text, node)[1]
                if text[end : end + 1] == "\n":
                    edits.append((end, end, "  # noted"))
    return _case_text(version, place, _edited(text, edits))


def annotated_and_decorated(rng: Random, version: str) -> Case:
    """Annotate parameters, results and variables, and decorate functions."""
    place = _some(rng, version, FUNCTIONS)
    tree, text = _parsed(place)
    function = _function(tree)
    edits: list[Edit] = []
    for arg in function.args.args:
        if arg.annotation is None and arg.arg != "self" and rng.random() < 0.7:
            end = _span(text, arg)[1]
            edits.append((end, end, ': "object"'))
    if function.returns is None:
        colon = text.rindex(":", 0, _body_start(text, function))
        edits.append((colon, colon, ' -> "object"'))
    shared = {n for s in ast.walk(tree) if isinstance(s, ast.Global) for n in s.names}
    seen: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and rng.random() < 0.3:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id not in shared | seen:
                seen.add(target.id)
                end = _span(text, target)[1]
                edits.append((end, end, ': "object"'))
    files = dict(base(version))
    whole = _edited(text, edits)
    if rng.random() < 0.5:
        indent = " " * function.col_offset
        decorator = rng.choice(("@no_type_check\n", "@noted_identity\n"))
        whole = whole.replace("class _:\n", f"class _:\n{indent}{decorator}", 1)
        if not whole.startswith("class _:\n"):
            whole = decorator + whole
        line = (
            "from typing import no_type_check\n"
            if "no_type" in decorator
            else "def noted_identity(function):\n    return function\n\n\n"
        )
        source = place.source.text
        block = place.block
        at = _behind_imports(source)
        inner = _unshelled(whole)
        replaced = _edited(source, [(at, at, line), (block.start, block.end, inner)])
        files[place.path] = replaced.encode()
        return Case(version, block.name, files)
    return _case_text(version, place, whole)


def parameters_appended(rng: Random, version: str) -> Case:
    """Append a parameter with a default, by position or by keyword only."""
    place = _some(rng, version, FUNCTIONS)
    tree, text = _parsed(place)
    function = _function(tree)
    keyword_only = rng.random() < 0.4 and not function.args.kwonlyargs
    new = ("*, " if keyword_only else "") + "noted_extra=None"
    opening = text.index("(", text.index("def ", _span(text, function)[0]))
    closing = _closing(text, opening)
    inner = text[opening + 1 : closing].rstrip()
    joint = "" if not inner or inner.endswith(",") else ", "
    if inner.endswith(","):
        joint = " "
    at = opening + 1 + len(inner)
    return _case_text(version, place, _edited(text, [(at, at, joint + new)]))


def lists_rewritten(rng: Random, version: str) -> Case:
    """Add entries, reorder them, one a line, as a tuple, with an annotation or `Final`."""
    place = _some(rng, version, LISTS)
    assign = ast.parse(place.text).body[0]
    assert isinstance(assign, ast.Assign)
    entries: list[str] = ast.literal_eval(assign.value)
    added = rng.sample(("noted_a", "noted_b", "noted_c"), rng.randrange(3))
    entries = [*entries, *added]
    if rng.random() < 0.5:
        rng.shuffle(entries)
    quote = rng.choice(("'", '"'))
    opening, closing = rng.choice(("[]", "()", "[]"))
    trailing = rng.choice((",", "")) if len(entries) > 1 else ","
    quoted = [f"{quote}{entry}{quote}" for entry in entries]
    layout = rng.randrange(3)
    if layout == 0:
        value = opening + ", ".join(quoted) + closing
    elif layout == 1:
        lines = ",\n".join(f"    {q}" for q in quoted)
        value = f"{opening}\n{lines}{trailing}\n{closing}"
    else:
        remarks = "\n".join(f"    {q},  # noted {i}" for i, q in enumerate(quoted))
        value = f"{opening}\n{remarks}\n{closing}"
    kind = "list" if opening == "[" else "tuple"
    hint = rng.choice(
        ("", f": {kind}[str]" if kind == "list" else ": tuple[str, ...]", ": Final", ": 'Final'")
    )
    line = "from typing import Final\n" if hint == ": Final" else ""
    at, block = _behind_imports(place.source.text), place.block
    text = f"{block.name}{hint} = {value}\n"
    edits = [(at, at, line), (block.start, block.end, text)]
    return Case(
        version,
        block.name,
        {**base(version), place.path: _edited(place.source.text, edits).encode()},
        added=frozenset(added),
    )


def statements_inserted(rng: Random, version: str) -> Case:
    """Insert up to three statements without effect at any place of a function."""
    place = _some(rng, version, FUNCTIONS)
    tree, text = _parsed(place)
    function = _function(tree)
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and node is not function
        and not _elif(text, node)
        and _line_start(text, node) is not None
        and not _docstring(function, node)
    ]
    edits: list[Edit] = []
    for node in rng.sample(found, min(len(found), rng.randrange(1, 4))):
        line = _line_start(text, node)
        assert line is not None
        statement = rng.choice(
            (
                "noted_value = 1",
                'print("noted")',
                "assert not None, 'noted'",
                "if noted_flag():\n{0}    pass",
                "noted.count += 1",
            )
        )
        indent = " " * node.col_offset
        edits.append((line, line, f"{indent}{statement.format(indent)}\n"))
    return _case_text(version, place, _edited(text, edits))


def handler_split(rng: Random, version: str) -> Case:
    """Move the first or last statements of the handler, or all of its branch, to a new method."""
    place = places(version)[HANDLER]
    tree, text = _parsed(place)
    function = _function(tree)
    branch = next(
        s
        for s in function.body
        if isinstance(s, ast.If) and ast.unparse(s.test) == "self.enable_deterministic_inference"
    )
    body = branch.body
    cuts: list[tuple[int, int]] = [(0, len(body)), (0, len(body))]
    for at in range(1, len(body)):
        cuts += [(0, at), (at, len(body))]
    usable = [(a, b) for a, b in cuts if _independent(body, a, b)]
    first, last = rng.choice(usable)
    start = _line_start(text, body[first])
    assert start is not None
    start = _with_comments(text, start)
    end = _span(text, body[last - 1])[1] + 1
    part = text[start:end]
    name = f"_noted_part_{rng.randrange(9)}"
    indent = " " * function.col_offset
    call = " " * body[0].col_offset + f"self.{name}()\n"
    method = f"\n{indent}def {name}(self):\n" + textwrap.indent(
        textwrap.dedent(part), f"{indent}    "
    )
    whole = text[:start] + call + text[end:]
    if rng.random() < 0.5:
        return _case_text(version, place, whole.rstrip("\n") + "\n" + method)
    inner = _unshelled(whole)
    return Case(version, HANDLER, _put(version, place, method.lstrip("\n") + "\n" + inner))


def early_returns(rng: Random, version: str) -> Case:
    """Return early instead of nesting."""
    names = (HANDLER, DISPATCH, *SAMPLER_METHODS, *SAMPLER_FUNCTIONS[:1])
    place = _some(rng, version, names)
    tree, _ = _parsed(place)
    function = _function(tree)
    changed = ast.unparse(function)
    body = function.body
    index = next(
        (i for i, s in enumerate(body) if isinstance(s, ast.If) and i >= len(body) - 2), -1
    )
    if place.block.name == HANDLER:
        index = next(
            i
            for i, s in enumerate(body)
            if isinstance(s, ast.If)
            and ast.unparse(s.test) == "self.enable_deterministic_inference"
        )
        if index != len(body) - 1:
            raise LookupError(HANDLER)
        branch = body[index]
        assert isinstance(branch, ast.If)
        refuse = ast.parse("if not self.enable_deterministic_inference: return").body
        if rng.random() < 0.3:
            refuse = ast.parse("if not self.enable_deterministic_inference: return None").body
        function.body = [*body[:index], *refuse, *branch.body]
    elif index < 0:
        raise LookupError(place.block.name)
    else:
        branch = body[index]
        assert isinstance(branch, ast.If)
        function.body = [*body[:index], *_flat(branch, body[index + 1 :])]
    text = ast.unparse(ast.fix_missing_locations(function))
    if text == changed:
        raise LookupError(place.block.name)
    text = black.format_str(text, mode=black.Mode(line_length=rng.choice((88, 100))))
    return Case(
        version, place.block.name, _put(version, place, _indented(text, _indent(place.text)))
    )


def encoded(rng: Random, version: str) -> Case:
    """Use CRLF, tabs, a byte order mark, a latin-1 cookie, or no final newline."""
    place = _some(rng, version, (*FUNCTIONS, *LISTS))
    text = place.source.text
    kinds = rng.sample(("crlf", "tabs", "mark", "cookie", "no newline"), rng.randrange(1, 4))
    if "mark" in kinds and "cookie" in kinds:
        kinds.remove("mark")
    if "tabs" in kinds:
        text = _tabbed(text)
    if "no newline" in kinds:
        text = text.rstrip("\n")
    encoding = "utf-8"
    if "cookie" in kinds:
        encoding = "latin-1"
        text = "# -*- coding: latin-1 -*-\n# déjà noted\n" + re.sub(r"[^\x00-\xff]", "?", text)
    if "crlf" in kinds:
        text = text.replace("\n", "\r\n")
    data = text.encode(encoding)
    if "mark" in kinds:
        data = b"\xef\xbb\xbf" + data
    return Case(
        version,
        f"{place.block.name} {' '.join(sorted(kinds))}",
        {**base(version), place.path: data},
    )


KINDS: dict[str, Callable[[Random, str], Case]] = {
    kind.__name__: kind
    for kind in (
        moved_in_file,
        moved_to_module,
        moved_to_base,
        locals_renamed,
        reformatted,
        parenthesised_and_commented,
        annotated_and_decorated,
        parameters_appended,
        lists_rewritten,
        statements_inserted,
        handler_split,
        early_returns,
        encoded,
    )
}


def _some(rng: Random, version: str, names: Iterable[str]) -> Place:
    known = places(version)
    return known[rng.choice([name for name in names if name in known])]


def _edited(text: str, edits: Sequence[Edit]) -> str:
    ordered = sorted(enumerate(edits), key=lambda e: (e[1][0], e[1][1], e[0]), reverse=True)
    for _, (start, end, new) in ordered:
        text = text[:start] + new + text[end:]
    return text


def _case(version: str, place: Place, whole: str) -> Case:
    return Case(version, place.block.name, {**base(version), place.path: whole.encode()})


def _case_text(version: str, place: Place, text: str) -> Case:
    return Case(version, place.block.name, _put(version, place, _unshelled(text)))


def _put(version: str, place: Place, text: str) -> dict[PurePosixPath, bytes]:
    return place.rewritten(base(version), _unshelled(text))


def _parsed(place: Place) -> tuple[ast.Module, str]:
    """Parse a definition alone, a method inside a class."""
    text = place.text
    if text[:1] in " \t":
        text = f"class _:\n{text}"
    return ast.parse(text), text


def _unshelled(text: str) -> str:
    return text.removeprefix("class _:\n")


def _function(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


@cache
def _starts(text: str) -> tuple[int, ...]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return tuple(starts)


def _span(text: str, node: ast.AST) -> tuple[int, int]:
    """Give a node's offsets; ast counts columns in bytes."""
    starts, lines = _starts(text), text.split("\n")
    assert isinstance(node, ast.expr | ast.stmt | ast.arg)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def _line_start(text: str, node: ast.stmt) -> int | None:
    """Give where a statement's line starts, None if something else stands on it first."""
    start = _starts(text)[node.lineno - 1]
    return start if not text[start : _span(text, node)[0]].strip() else None


def _elif(text: str, node: ast.AST) -> bool:
    return isinstance(node, ast.If) and text.startswith("elif", _span(text, node)[0])


def _docstring(function: ast.FunctionDef, node: ast.stmt) -> bool:
    return node is function.body[0] and isinstance(node, ast.Expr)


def _body_start(text: str, function: ast.FunctionDef) -> int:
    return _span(text, function.body[0])[0]


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise AssertionError(text[opening:])


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))]


def _indented(text: str, indent: str) -> str:
    """Indent all lines but those inside strings."""
    tree = ast.parse(text)
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno
        for line in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = text.splitlines(keepends=True)
    return "".join(
        indent + line if line.strip() and number not in inside else line
        for number, line in enumerate(lines, 1)
    )


def _tabbed(text: str) -> str:
    inside = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno
        for line in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.lstrip(" ")
        depth = len(line) - len(bare)
        tabs = "\t" * (depth // 4) + " " * (depth % 4)
        lines.append(line if number in inside else tabs + bare)
    return "\n".join(lines)


def _single_quoted(text: str) -> str:
    return re.sub(r"(?<![\w\"'])\"([^\"'\\{}\n]*)\"(?!\")", r"'\1'", text)


def _behind_imports(text: str) -> int:
    """Give an offset behind the imports at the head of a module."""
    body = ast.parse(text).body
    last = 0
    for node in body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (isinstance(node, ast.Import | ast.ImportFrom) or docstring):
            break
        last = node.end_lineno or 0
    return _starts(text)[last]


def _head(text: str, place: Place) -> str:
    """Give what a definition may need of its module: imports, constants, and other definitions."""
    tree, needed = ast.parse(text), []
    names = {n.id for n in ast.walk(_parsed(place)[0]) if isinstance(n, ast.Name)}
    module = ".".join(place.path.with_suffix("").parts)
    for node in tree.body:
        guarded = isinstance(node, ast.If | ast.Try) and not any(
            isinstance(inner, ast.FunctionDef | ast.ClassDef) for inner in ast.walk(node)
        )
        if isinstance(node, ast.Import | ast.ImportFrom) or guarded:
            needed.append(ast.get_source_segment(text, node) or "")
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id in names | {"logger", "_is_npu"} for t in node.targets
        ):
            if place.block.name not in LISTS or place.block.name != ast.unparse(node.targets[0]):
                needed.append(ast.get_source_segment(text, node) or "")
        elif (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.name in names
            and node.name != place.block.name
        ):
            needed.append(f"from {module} import {node.name}")
    return "\n".join(needed) + "\n"


def _independent(body: Sequence[ast.stmt], first: int, last: int) -> bool:
    """Tell whether a part shares no local variable with what is around it."""

    def names(part: Iterable[ast.stmt], context: type[ast.expr_context]) -> set[str]:
        return {
            n.id
            for s in part
            for n in ast.walk(s)
            if isinstance(n, ast.Name) and isinstance(n.ctx, context)
        }

    inside, before, after = body[first:last], body[:first], body[last:]
    returns = any(isinstance(n, ast.Return) for s in inside for n in ast.walk(s))
    return not (
        returns
        or names(inside, ast.Store) & names(after, ast.Load)
        or names(before, ast.Store) & names(inside, ast.Load)
    )


def _with_comments(text: str, start: int) -> int:
    while start:
        above = text.rindex("\n", 0, start - 1) + 1 if "\n" in text[: start - 1] else 0
        if not text[above:start].lstrip().startswith("#"):
            return start
        start = above
    return start


def _flat(branch: ast.If, rest: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Turn an ``if`` with ``else`` into one that returns, followed by the rest."""
    if not branch.orelse or any(isinstance(s, ast.Raise) for s in branch.orelse):
        raised = list(branch.orelse)
    else:
        raised = []
    behind = list(rest)
    if behind and not all(isinstance(s, ast.Return) for s in behind):
        raise LookupError("more than a return behind it")
    body = [*branch.body, *behind]
    ends = isinstance(body[-1], ast.Return | ast.Raise)
    if not branch.orelse or not ends:
        raise LookupError("nothing to flatten")
    del raised
    following = branch.orelse
    if len(following) == 1 and isinstance(following[0], ast.If) and following[0].orelse:
        flat = _flat(following[0], behind)
    else:
        tail = [] if isinstance(following[-1], ast.Return | ast.Raise) else behind
        flat = [*following, *tail]
    return [ast.If(test=branch.test, body=body, orelse=[]), *flat]


__all__ = ["KINDS", "read_source"]
