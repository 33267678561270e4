"""Judge the patched result of a refactored release by that of the release itself."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import symtable
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import Any

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.engine.plan import prove
from tests.refactor.project import (
    DISPATCH,
    LISTS,
    MODE,
    PREFILL,
    SAMPLER_FUNCTIONS,
    SAMPLER_METHODS,
    Case,
    base,
    places,
    plan_of,
)
from tests.refactor.text import NOTED

Files = Mapping[PurePosixPath, bytes]

JUDGED = (
    *symbols.HANDLER.names,
    *MODE,
    DISPATCH,
    *SAMPLER_METHODS,
    *SAMPLER_FUNCTIONS,
    PREFILL,
    "forward",
)


def judge(case: Case) -> str:
    """Give "right", "refused: <seams>", or say what is wrong."""
    plan = plan_of(case.files)
    if plan.conflicts:
        assert not plan.changes.changes
        names = [o.seam for o in plan.conflicts if not o.reason.startswith("needs ")]
        return "refused: " + ", ".join(names)
    expected, statuses = _of_release(case.version)
    found = {o.seam: o.status for o in plan.outcomes}
    if found != statuses:
        return f"wrong: statuses {set(found.items()) ^ set(statuses.items())}"
    prove(plan)
    after = {**case.files, **{c.path: c.after for c in plan.changes.changes}}
    for change in plan.changes.changes:
        compile(change.after, str(change.path), "exec", dont_inherit=True)
        if change.before is not None:
            problem = _unminimal(change.before, change.after) or _unbound(
                change.before, change.after
            )
            if problem:
                return f"wrong: {change.path}: {problem}"
    meaning = meanings(after, case)
    for name, (text, _) in expected.items():
        got, path = meaning.get(name, ("nothing", None))
        if got != text:
            lines = difflib.unified_diff(text.splitlines(), got.splitlines(), "want", "got", n=1)
            return f"wrong: {name} in {path}\n" + "\n".join(lines)
    return "right"


@cache
def _of_release(version: str) -> tuple[dict[str, tuple[str, PurePosixPath]], dict[str, str]]:
    plan = plan_of(base(version))
    after = {**base(version), **{c.path: c.after for c in plan.changes.changes}}
    return meanings(after, Case(version, "", {})), {o.seam: o.status for o in plan.outcomes}


def meanings(files: Files, case: Case) -> dict[str, tuple[str, PurePosixPath]]:
    """Give every judged definition in a normal form, and where it stands."""
    paths = {place.path for place in places(case.version).values()}
    found: dict[str, tuple[str, PurePosixPath]] = {}
    renamed = tuple(sorted(case.renamed.items()))
    for path, data in files.items():
        if path in paths or NOTED in path.name:
            found.update(_meanings_of(path, data, renamed, case.added))
        elif "batch_invariant_ops/" in str(path) and "npu/" in str(path):
            found[path.name] = (str(hash(data)), path)
    return found


@lru_cache(maxsize=40)
def _meanings_of(
    path: PurePosixPath,
    data: bytes,
    renamed: tuple[tuple[str, str], ...],
    entries_added: frozenset[str],
) -> dict[str, tuple[str, PurePosixPath]]:
    tree = ast.parse(data)
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    found: dict[str, tuple[str, PurePosixPath]] = {}
    for node in [*tree.body, *(n for c in tree.body for n in getattr(c, "body", []))]:
        if isinstance(node, ast.FunctionDef) and node.name in JUDGED:
            attention = "ascend_backend" in path.name or NOTED in path.name
            if (node.name == PREFILL and not attention) or (
                node.name == "forward" and SAMPLER_METHODS[0] not in ast.unparse(node)
            ):
                continue
            found[node.name] = (_normal(node, functions, dict(renamed)), path)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
            if name in LISTS and node.value is not None:
                entries: list[str] = ast.literal_eval(node.value)
                assert len(set(entries)) == len(entries)
                found[name] = (repr(sorted(set(entries) - entries_added)), path)
    return found


def _normal(
    function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], renamed: Mapping[str, str]
) -> str:
    copied = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copied, ast.FunctionDef)
    if ast.get_docstring(copied) is not None:
        copied.body[0] = ast.Expr(ast.Constant(ast.get_docstring(copied)))
        ast.fix_missing_locations(copied)
    tree = _Normal(renamed).visit(_without_noted(copied, functions))
    tree.body = _flattened(tree.body)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Normal(ast.NodeTransformer):
    """Take out what the refactorings add."""

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self.renamed = renamed

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        kept = [
            d
            for d in node.decorator_list
            if not any(word in ast.unparse(d) for word in (NOTED, "no_type_check"))
        ]
        node.decorator_list = kept
        node.returns = None
        defaults = len(node.args.defaults)
        arguments = node.args.args
        values: list[ast.expr | None] = [None] * (len(arguments) - defaults) + [*node.args.defaults]
        pairs = [
            (a, d)
            for a, d in (
                *zip(arguments, values, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            )
            if NOTED not in a.arg
        ]
        for argument, _ in pairs:
            argument.annotation = None
        node.args = ast.arguments(
            posonlyargs=[],
            args=[],
            vararg=node.args.vararg,
            kwonlyargs=[a for a, _ in pairs],
            kw_defaults=[d for _, d in pairs],
            kwarg=node.args.kwarg,
            defaults=[],
        )
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for keyword in list(node.keywords):
            if keyword.arg in ("positions", "sampling_seed"):
                node.keywords.remove(keyword)
                node.args.append(keyword.value)
        return node


def _without_noted(node: Any, functions: Mapping[str, ast.FunctionDef]) -> Any:
    """Take out statements that were inserted, and put parts that were taken out back."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            setattr(node, name, _kept(block, functions))
    return node


def _kept(block: Sequence[ast.stmt], functions: Mapping[str, ast.FunctionDef]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for statement in block:
        head = statement.test if isinstance(statement, ast.If) else statement
        text = ast.unparse(head) if not hasattr(head, "body") else ""
        call = re.fullmatch(r"self\.(_noted_part_\d)\(\)", text)
        if call:
            part = ast.parse(ast.unparse(functions[call.group(1)])).body[0]
            kept += _without_noted(part, functions).body
        elif NOTED not in text:
            kept.append(_without_noted(statement, functions))
    return kept


def _flattened(body: list[ast.stmt]) -> list[ast.stmt]:
    """Write an ``else`` behind what returns as what follows, at the end of a function."""
    for index, node in enumerate(body):
        if not isinstance(node, ast.If):
            continue
        if _leaves(node.body):
            node.body = _flattened(node.body)
        rest = body[index + 1 :]
        plain_return = (
            len(node.body) == 1
            and isinstance(node.body[0], ast.Return)
            and ast.unparse(node.body[0]) in ("return", "return None")
            and not node.orelse
            and isinstance(node.test, ast.UnaryOp)
        )
        if plain_return and isinstance(node.test, ast.UnaryOp):
            nested = ast.If(test=node.test.operand, body=_flattened(rest), orelse=[])
            return [*body[:index], nested]
        if all(isinstance(s, ast.Return) for s in rest) and node.orelse and index >= len(body) - 2:
            first = [*node.body, *([] if _leaves(node.body) else rest)]
            if _leaves(first):
                second = [*node.orelse, *([] if _leaves(node.orelse) else rest)]
                nested = ast.If(test=node.test, body=_flattened(first), orelse=[])
                return [*body[:index], nested, *_flattened(second)]
    return body


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise)


def _unminimal(before: bytes, after: bytes) -> str:
    """Insist that next to nothing is deleted and that line endings stay alike."""
    old, new = (re.split(rb"(?<=\n)", data) for data in (before, after))
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    deleted = inserted = 0
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            deleted, inserted = deleted + b - a, inserted + d - c
    crlf = before.count(b"\r\n")
    if crlf and crlf == before.count(b"\n") and after.count(b"\r\n") != after.count(b"\n"):
        return "mixed line endings"
    return f"{deleted} lines deleted" if deleted > 45 or inserted > 120 else ""


def _unbound(before: bytes, after: bytes) -> str:
    new = unbound_names(after) - unbound_names(before)
    return f"names without a binding: {', '.join(sorted(new))}" if new else ""


def unbound_names(data: bytes) -> set[str]:
    """List the names that functions of a module take from it and that it does not bind."""
    table = symtable.symtable(data.decode("latin-1").removeprefix("ï»¿"), "module", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {s.get_name() for s in table.get_symbols() if s.is_namespace()}
    found: set[str] = set()
    pending = table.get_children()
    while pending:
        scope = pending.pop()
        pending += scope.get_children()
        declared = {
            s.get_name() for s in scope.get_symbols() if s.is_declared_global() and s.is_assigned()
        }
        bound |= declared
        found |= {s.get_name() for s in scope.get_symbols() if s.is_global() and s.is_referenced()}
    return found - bound - set(dir(builtins))
