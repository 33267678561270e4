"""Refactor a release by moving definitions, and parts of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence
from random import Random

import black

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
from tests.refactor.text import (
    NOTED,
    Edit,
    behind_imports,
    case_of,
    case_of_text,
    edited,
    function_of,
    indent_of,
    indented,
    line_start,
    parsed,
    some_place,
    span,
    unshelled,
    with_text,
)


def moved_in_file(rng: Random, version: str) -> Case:
    """Move a function or method before or behind another of its file or class."""
    place = some_place(rng, version, FUNCTIONS)
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
        and not (place.owner is None and other.start < behind_imports(source.text))
    ]
    if not others:
        raise LookupError(block.name)
    other = rng.choice(others)
    at = rng.choice((other.start, other.end))
    text = source.cut(block)
    edits = [(block.start, block.end, ""), (at, at, f"\n{text}\n")]
    return case_of(version, place, edited(source.text, edits))


def moved_to_module(rng: Random, version: str) -> Case:
    """Move a list, a function or all of a module to a new one, and import it back."""
    known = places(version)
    names = [n for n in (*LISTS, DISPATCH, *SAMPLER_FUNCTIONS) if n in known]
    names += [HANDLER] if known[HANDLER].owner is None else []
    chosen = rng.choice([*names, "mode"])
    place = known[MODE[0] if chosen == "mode" else chosen]
    name = "mode" if chosen == "mode" else place.block.name
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
    files[place.path] = _imported_back(rng, place, module, _dotted(place) in head)
    return Case(version, name, files)


def class_moved_to_module(rng: Random, version: str) -> Case:
    """Move a class to a new module, and import it back."""
    place = some_place(rng, version, (*SAMPLER_METHODS, "forward_extend"))
    owner, text = place.owner, place.source.text
    assert owner is not None
    moved = Place(place.path, place.source, owner)
    path = place.path.with_name(f"{NOTED}_{rng.randrange(99)}.py")
    module = ".".join(path.with_suffix("").parts)
    head = _head(text, moved)
    files = dict(base(version))
    files[path] = f"{head}\n\n{moved.text}".encode()
    files[place.path] = _imported_back(rng, moved, module, _dotted(place) in head)
    return Case(version, owner.name, files)


def _imported_back(rng: Random, place: Place, module: str, late: bool) -> bytes:
    """Import a moved definition where it was, or at the head of the module.

    Args:
        late: at the end of the module, since the new module imports from it in its turn.
    """
    name, text = place.block.name, place.source.text
    line = rng.choice(
        (f"from {module} import {name}\n", f"from {module} import (\n    {name},\n)\n")
    )
    at = len(text) if late else rng.choice((place.block.start, behind_imports(text)))
    edits = [(place.block.start, place.block.end, ""), (at, at, line)]
    return edited(text, edits).encode()


def _dotted(place: Place) -> str:
    return f"from {'.'.join(place.path.with_suffix('').parts)} import "


def moved_to_base(rng: Random, version: str) -> Case:
    """Move a method to a new base class, in its own file or another."""
    place = some_place(rng, version, (HANDLER, *SAMPLER_METHODS, "forward_extend"))
    text, owner = place.source.text, place.owner
    if owner is None:
        raise LookupError(place.block.name)
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
    head = _head(text, place)
    # A base class must be there before what its module defines below it.
    circular = f"from {'.'.join(place.path.with_suffix('').parts)} import" in head
    if rng.random() < 0.5 or circular:
        edits.append((owner.start, owner.start, kind))
    else:
        path = place.path.with_name(f"{NOTED}_base.py")
        files[path] = f"{head}\n\n{kind}".encode()
        module = ".".join(path.with_suffix("").parts)
        at = behind_imports(text)
        edits.append((at, at, f"from {module} import {name}\n"))
    files[place.path] = edited(text, edits).encode()
    return Case(version, place.block.name, files)


def handler_split(rng: Random, version: str) -> Case:
    """Move the first or last statements of the handler, or all of its branch, to a new method."""
    place = places(version)[HANDLER]
    tree, text = parsed(place)
    function = function_of(tree)
    branch = _branch(function)
    body = branch.body
    cuts: list[tuple[int, int]] = [(0, len(body)), (0, len(body))]
    for at in range(1, len(body)):
        cuts += [(0, at), (at, len(body))]
    usable = [(a, b) for a, b in cuts if _independent(body, a, b)]
    first, last = rng.choice(usable)
    start = line_start(text, body[first])
    assert start is not None
    start = _with_comments(text, start)
    end = span(text, body[last - 1])[1] + 1
    part = text[start:end]
    name = f"_noted_part_{rng.randrange(9)}"
    indent = " " * function.col_offset
    call = " " * body[0].col_offset + f"self.{name}()\n"
    method = f"\n{indent}def {name}(self):\n" + textwrap.indent(
        textwrap.dedent(part), f"{indent}    "
    )
    whole = text[:start] + call + text[end:]
    if rng.random() < 0.5:
        return case_of_text(version, place, whole.rstrip("\n") + "\n" + method)
    inner = unshelled(whole)
    return Case(version, HANDLER, with_text(version, place, method.lstrip("\n") + "\n" + inner))


def early_returns(rng: Random, version: str) -> Case:
    """Return early instead of nesting."""
    names = (HANDLER, DISPATCH, *SAMPLER_METHODS, *SAMPLER_FUNCTIONS[:1])
    place = some_place(rng, version, names)
    tree, _ = parsed(place)
    function = function_of(tree)
    changed = ast.unparse(function)
    body = function.body
    index = next(
        (i for i, s in enumerate(body) if isinstance(s, ast.If) and i >= len(body) - 2), -1
    )
    if place.block.name == HANDLER:
        index = body.index(_branch(function))
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
        version, place.block.name, with_text(version, place, indented(text, indent_of(place.text)))
    )


def _branch(function: ast.FunctionDef) -> ast.If:
    for statement in function.body:
        if (
            isinstance(statement, ast.If)
            and ast.unparse(statement.test) == "self.enable_deterministic_inference"
        ):
            return statement
    raise LookupError(function.name)


def _head(text: str, place: Place) -> str:
    """Return what a definition may need of its module: imports, constants, other definitions."""
    tree, needed = ast.parse(text), []
    names = {n.id for n in ast.walk(parsed(place)[0]) if isinstance(n, ast.Name)}
    module = ".".join(place.path.with_suffix("").parts)
    guards = [node for node in tree.body if isinstance(node, ast.If | ast.Try)]
    guards = [node for node in guards if _imported(node) & names]
    names |= {n.id for node in guards for n in ast.walk(node) if isinstance(n, ast.Name)}
    for node in tree.body:
        guarded = node in guards
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


def _imported(node: ast.stmt) -> set[str]:
    """Return the names that the imports under a condition bind."""
    inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for each in inner for alias in each.names}


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
