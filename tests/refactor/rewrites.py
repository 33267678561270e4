"""Refactor a release by rewriting definitions where they are."""

from __future__ import annotations

import ast
import re
import textwrap
from random import Random

import black

from tests.refactor.project import FUNCTIONS, LISTS, Case, base
from tests.refactor.text import (
    Edit,
    behind_imports,
    case_of_text,
    edited,
    function_of,
    indent_of,
    indented,
    is_elif,
    line_start,
    parsed,
    some_place,
    span,
    unshelled,
    with_text,
)


def locals_renamed(rng: Random, version: str) -> Case:
    """Rename up to three local variables of a function."""
    place = some_place(rng, version, FUNCTIONS)
    tree, text = parsed(place)
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
        (*span(text, n), chosen[n.id])
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and n.id in chosen
    ]
    return Case(
        version,
        place.block.name,
        with_text(version, place, edited(text, edits)),
        renamed={new: old for old, new in chosen.items()},
    )


def reformatted(rng: Random, version: str) -> Case:
    """Format a file anew, with another line length and perhaps other quotes."""
    place = some_place(rng, version, (*FUNCTIONS, *LISTS))
    length = rng.choice((60, 79, 100, 120, 160))
    single = rng.random() < 0.5
    mode = black.Mode(
        line_length=length,
        string_normalization=not single,
        magic_trailing_comma=rng.random() < 0.5,
    )
    indent = indent_of(place.text)
    text = textwrap.dedent(place.text)
    if single:
        text = _single_quoted(text)
    text = black.format_str(text, mode=mode)
    return Case(version, place.block.name, with_text(version, place, indented(text, indent)))


def parenthesised_and_commented(rng: Random, version: str) -> Case:
    """Put brackets around values and tests, and comments above and behind statements."""
    place = some_place(rng, version, (*FUNCTIONS, *LISTS))
    tree, text = parsed(place)
    edits: list[Edit] = []
    for node in ast.walk(tree):
        value = getattr(node, "test" if isinstance(node, ast.If) else "value", None)
        if (
            isinstance(node, ast.Assign | ast.Return | ast.If)
            and isinstance(value, ast.expr)
            and rng.random() < 0.4
        ):
            first, last = span(text, value)
            if not is_elif(text, node):
                edits += [(first, first, "("), (last, last, ")")]
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
            line = line_start(text, node)
            if line is not None and rng.random() < 0.3 and not is_elif(text, node):
                edits.append((line, line, " " * node.col_offset + "# noted: a remark\n"))
            if isinstance(node, ast.Assign | ast.Expr | ast.Return) and rng.random() < 0.3:
                end = span(text, node)[1]
                if text[end : end + 1] == "\n":
                    edits.append((end, end, "  # noted"))
    return case_of_text(version, place, edited(text, edits))


def annotated_and_decorated(rng: Random, version: str) -> Case:
    """Annotate parameters, results and variables, and decorate functions."""
    place = some_place(rng, version, FUNCTIONS)
    tree, text = parsed(place)
    function = function_of(tree)
    edits: list[Edit] = []
    for arg in function.args.args:
        if arg.annotation is None and arg.arg != "self" and rng.random() < 0.7:
            end = span(text, arg)[1]
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
                end = span(text, target)[1]
                edits.append((end, end, ': "object"'))
    files = dict(base(version))
    whole = edited(text, edits)
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
        at = behind_imports(source)
        inner = unshelled(whole)
        replaced = edited(source, [(at, at, line), (block.start, block.end, inner)])
        files[place.path] = replaced.encode()
        return Case(version, block.name, files)
    return case_of_text(version, place, whole)


def parameters_appended(rng: Random, version: str) -> Case:
    """Append a parameter with a default, by position or by keyword only."""
    place = some_place(rng, version, FUNCTIONS)
    tree, text = parsed(place)
    function = function_of(tree)
    keyword_only = rng.random() < 0.4 and not function.args.kwonlyargs
    new = ("*, " if keyword_only else "") + "noted_extra=None"
    opening = text.index("(", text.index("def ", span(text, function)[0]))
    closing = _closing(text, opening)
    inner = text[opening + 1 : closing].rstrip()
    joint = "" if not inner or inner.endswith(",") else ", "
    if inner.endswith(","):
        joint = " "
    at = opening + 1 + len(inner)
    return case_of_text(version, place, edited(text, [(at, at, joint + new)]))


def lists_rewritten(rng: Random, version: str) -> Case:
    """Add entries, reorder them, one a line, as a tuple, with an annotation or `Final`."""
    place = some_place(rng, version, LISTS)
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
    at, block = behind_imports(place.source.text), place.block
    text = f"{block.name}{hint} = {value}\n"
    edits = [(at, at, line), (block.start, block.end, text)]
    return Case(
        version,
        block.name,
        {**base(version), place.path: edited(place.source.text, edits).encode()},
        added=frozenset(added),
    )


def statements_inserted(rng: Random, version: str) -> Case:
    """Insert up to three statements without effect at any place of a function."""
    place = some_place(rng, version, FUNCTIONS)
    tree, text = parsed(place)
    function = function_of(tree)
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and node is not function
        and not is_elif(text, node)
        and line_start(text, node) is not None
        and not _docstring(function, node)
    ]
    edits: list[Edit] = []
    for node in rng.sample(found, min(len(found), rng.randrange(1, 4))):
        line = line_start(text, node)
        assert line is not None
        statement = rng.choice(
            (
                "noted_value = 1",
                'print("noted")',
                "assert not None, 'noted'",
                "if not 'noted':\n{0}    pass",
                "globals().setdefault('noted', 1)",
            )
        )
        indent = " " * node.col_offset
        edits.append((line, line, f"{indent}{statement.format(indent)}\n"))
    return case_of_text(version, place, edited(text, edits))


def encoded(rng: Random, version: str) -> Case:
    """Use CRLF, tabs, a byte order mark, a latin-1 cookie, or no final newline."""
    place = some_place(rng, version, (*FUNCTIONS, *LISTS))
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


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise AssertionError(text[opening:])


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


def _docstring(function: ast.FunctionDef, node: ast.stmt) -> bool:
    return node is function.body[0] and isinstance(node, ast.Expr)


def _body_start(text: str, function: ast.FunctionDef) -> int:
    return span(text, function.body[0])[0]
