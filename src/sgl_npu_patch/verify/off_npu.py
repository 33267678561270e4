"""Prove that a patched module does off an NPU what it did before.

Both versions are parsed, every test for an NPU is taken as false and what it guards is dropped.
What is left must be the same syntax tree, up to what differs by design; that is listed. The bodies
of functions that only the Ascend sampling backend reaches are left out, once their callers show it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sgl_npu_patch.codemods import SERIES, attention_comment
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.verify.findings import Finding, NotApplicable, failed
from sgl_npu_patch.verify.static import calls
from sgl_npu_patch.verify.static.judged import FunctionNode, Judged

CHECK = "unchanged_off_npu"
MEANING = "Off an NPU the seam's files do what the unpatched ones do."
NOWHERE_ELSE = "series.changes_nothing_else"
ELSEWHERE = "Off an NPU the files that the series edits differ nowhere else."

_ASCEND_PATH = tuple(
    symbol.name
    for symbol in (symbols.FORWARD_ASCEND, symbols.SAMPLE_FROM_LOGITS, symbols.SAMPLE_ASCEND)
)
"""The functions of the Ascend path, each called by the one before it."""
_ON_ASCEND = "use_ascend_backend"
_LISTS = (*symbols.CHOICES.names, *symbols.SUPPORTED.names)
_BACKENDS = (symbols.SAMPLING_BACKEND, "attention_backend")
_PURE = ("torch.compiler.is_compiling",)
"""Calls without effect, so that it does not matter whether a test that is false makes them."""
_ACCEPTS = "radix_cache"
_WORD = re.compile(r"\w+")
_LINES = 16
"""How much of a difference is shown."""

Key = tuple[PurePosixPath, str]


@dataclass(frozen=True, slots=True)
class _Difference:
    """Give what one definition differs in: by design, and otherwise."""

    notes: tuple[str, ...]
    finding: Finding | None = None


def check(judged: Judged, base: Judged, only: Collection[str] = ()) -> list[Result]:
    """Compare the files that the series edits with the unpatched tree's.

    Args:
        only: ids and seams to take, all if empty.
    """
    owners: dict[Key, list[str]] = {}
    for seam in judged.outcomes:
        for key in dict.fromkeys((*_edited(judged, seam), *_to_edit(judged, base, seam))):
            owners.setdefault(key, []).append(seam)
    marks = _marks(base)
    found: dict[Key, _Difference] = {}
    only_ascend = _only_on_ascend(judged)
    versions: dict[PurePosixPath, tuple[_Version, _Version]] = {}
    symbols: dict[PurePosixPath, dict[str, list[str]]] = {}
    for (path, symbol), seams in owners.items():
        symbols.setdefault(path, {})[symbol] = seams
    for path, names in symbols.items():
        try:
            versions[path] = _versions(judged, base.overlay, path, names)
        except _NotComparable as error:
            found |= {(path, symbol): _Difference((), error.finding) for symbol in names}
    added: dict[str, list[str]] = {}
    for old, new in versions.values():
        added |= new.take_out_parameters(old)
    for path, (old, new) in versions.items():
        # What takes the parameters may stand in another file than what passes them.
        new.take_out_arguments(added)
        compared = _compare(path, old, new, symbols[path], only_ascend)
        found |= {(path, symbol): difference for symbol, difference in compared.items()}
    wanted = [s for s in judged.outcomes if not only or {s, f"{s}.{CHECK}"} & set(only)]
    results = [_of_seam(judged, base.overlay, seam, owners, marks, found) for seam in wanted]
    if not only or NOWHERE_ELSE in only:
        results.append(_elsewhere(owners, found))
    return results


def _edited(judged: Judged, seam: str) -> list[Key]:
    """List the definitions that carry our change."""
    if judged.outcomes[seam].status not in ("already", "pending"):
        return []
    return _keys(judged, seam)


def _to_edit(judged: Judged, base: Judged, seam: str) -> list[Key]:
    """List the definitions that are edited in the unpatched tree, in which a seam may be all."""
    if base.outcomes[seam].status != "pending":
        return []
    return [
        (judged.package / path.relative_to(base.package), symbol)
        for path, symbol in _keys(base, seam)
    ]


def _keys(judged: Judged, seam: str) -> list[Key]:
    try:
        return [(place.path, place.block.qualname) for place in judged.places(seam)]
    except NotApplicable:
        return []


def _of_seam(
    judged: Judged,
    base: Overlay,
    seam: str,
    owners: Mapping[Key, Sequence[str]],
    marks: Mapping[str, frozenset[str]],
    found: Mapping[Key, _Difference],
) -> Result:
    name = f"{seam}.{CHECK}"
    mine = [key for key, seams in owners.items() if seam in seams]
    notes = list(_added(judged, base, seam))
    if not mine and not notes:
        outcome = judged.outcomes[seam]
        return _result(name, seam, MEANING, "not-applicable", f"{outcome.status}: nothing of ours")
    findings = []
    for key in mine:
        notes += (note for note in found[key].notes if seam in _meant(owners[key], note, marks))
        finding = found[key].finding
        if finding is not None and seam in _meant(owners[key], finding.code, marks):
            findings.append(finding)
    if findings:
        return failed(name, seam, MEANING, findings)
    told = "\n".join([f"{MEANING} By design:", *dict.fromkeys(notes)]) if notes else MEANING
    site = judged.outcomes[seam].sites[:1]
    return _result(name, seam, MEANING, "pass", told, *site)


def _meant(seams: Sequence[str], text: str, marks: Mapping[str, frozenset[str]]) -> Sequence[str]:
    """Choose the seams that a difference belongs to among those that edit the definition."""
    words = frozenset(_WORD.findall(text))
    marked = [seam for seam in seams if words & marks.get(seam, frozenset())]
    return marked if len(marked) == 1 else seams


def _marks(base: Judged) -> dict[str, frozenset[str]]:
    """Return the words that only one seam writes, by seam, from its edits of the unpatched tree."""
    written = {seam: base.written(seam) for seam in base.outcomes}
    shared = Counter(word for words in written.values() for word in words)
    return {
        seam: frozenset(word for word in words if shared[word] == 1)
        for seam, words in written.items()
    }


def _elsewhere(owners: Mapping[Key, object], found: Mapping[Key, _Difference]) -> Result:
    findings = [d.finding for key, d in found.items() if d.finding and key not in owners]
    if findings:
        return failed(NOWHERE_ELSE, "", ELSEWHERE, findings)
    if not found:
        reason = "the series edits no file of this tree"
        return _result(NOWHERE_ELSE, "", ELSEWHERE, "not-applicable", reason)
    return _result(NOWHERE_ELSE, "", ELSEWHERE, "pass", ELSEWHERE)


def _result(
    name: str, seam: str, meaning: str, verdict: Verdict, message: str, site: Site | None = None
) -> Result:
    return Result(
        id=name,
        seam=seam,
        kind="static",
        verdict=verdict,
        meaning=meaning,
        message=message,
        site=site,
    )


def _added(judged: Judged, base: Overlay, seam: str) -> Iterator[str]:
    for module in SERIES[seam].vendors:
        path = PROJECT.vendor_folder / f"{module}.py"
        there = judged.overlay.read(judged.package / path) is not None
        if there and base.read(base.tree.package / path) is None:
            yield f"{path} is added"


class _NotComparable(Exception):
    """Say why two versions of a file cannot be compared."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.found)
        self.finding = finding


def _versions(
    judged: Judged, base: Overlay, path: PurePosixPath, symbols: Mapping[str, Sequence[str]]
) -> tuple[_Version, _Version]:
    """Return the unpatched and the patched version of a file.

    Args:
        symbols: the definitions to tell apart, with the seams that edit them.

    Raises:
        _NotComparable: there is but one, or this Python does not parse both.
    """
    unpatched = base.source(base.tree.package / path.relative_to(judged.package))
    if unpatched is None:
        site = Site(path, 0, "")
        raise _NotComparable(
            Finding(site, "the file in the unpatched tree too", "none", "see --base")
        )
    texts = (unpatched.text, judged.source(path).text)
    try:
        old, new = (_Version(ast.parse(text.removeprefix("\ufeff")), symbols) for text in texts)
    except SyntaxError as error:
        site = Site(path, error.lineno or 0, "")
        raise _NotComparable(
            Finding(site, "syntax that this Python knows", str(error), "use a newer Python")
        ) from error
    return old, new


def _compare(
    path: PurePosixPath,
    old: _Version,
    new: _Version,
    symbols: Collection[str],
    only_ascend: Mapping[str, str],
) -> dict[str, _Difference]:
    """Compare one file, definition by definition; what no seam edits is that of no name.

    Args:
        only_ascend: the functions whose bodies do not count, with the reason.
    """
    found = {}
    for symbol in (*symbols, ""):
        then, now = (version.notes.get(symbol, []) for version in (old, new))
        notes = [note for note in now if note not in then]
        notes += (f"{note} no more" for note in then if note not in now)
        parts = [version.parts.get(symbol) for version in (old, new)]
        why = only_ascend.get(symbol.rpartition(".")[2], "")
        if why and _code(parts[0]) != _code(parts[1]):
            notes.append(f"{symbol} runs on the Ascend path only: {why}")
            parts = [_without_body(part) for part in parts]
        same = _code(parts[0]) == _code(parts[1]) and parts[1] is not None
        finding = None if same else _finding(path, symbol, parts)
        found[symbol] = _Difference(tuple(notes), finding)
    return found


def _finding(path: PurePosixPath, symbol: str, parts: Sequence[ast.AST | None]) -> Finding:
    old, new = (ast.unparse(part).splitlines() if part else [] for part in parts)
    diff = list(difflib.unified_diff(old, new, "unpatched", "patched", n=1, lineterm=""))
    more = ["..."] if len(diff) > _LINES else []
    return Finding(
        Site(path, getattr(parts[1], "lineno", 0), symbol),
        "the unpatched tree's code once every test for an NPU is false",
        "other code" if new else "no such definition",
        "take the difference out, or apply the series to the unpatched tree again",
        "\n".join([*diff[:_LINES], *more]),
    )


def _code(node: ast.AST | None) -> str:
    return ast.dump(node) if node is not None else ""


def _without_body(node: ast.AST | None) -> ast.AST | None:
    if not isinstance(node, FunctionNode):
        return node
    kept = {name: getattr(node, name) for name in node._fields if name != "body"}
    return ast.copy_location(type(node)(**kept, body=[ast.Pass()]), node)


def _only_on_ascend(judged: Judged) -> dict[str, str]:
    """Say of each function of the Ascend path what shows that nothing else reaches it."""
    shown: dict[str, str] = {}
    if not _means_ascend(judged):
        return shown
    for name, caller in zip(_ASCEND_PATH, ("", *_ASCEND_PATH), strict=False):
        _, uses = calls.collect(judged, name)
        callers = {use.found.scope for use in uses if use.call is not None}
        if caller:
            allowed = all(use.found.scope.rpartition(".")[2] in (caller, name) for use in uses)
        else:
            allowed = all(map(_guarded, uses))
        if not uses or not allowed or (caller and caller not in shown):
            break
        callers = {scope for scope in callers if scope.rpartition(".")[2] != name}
        above = f"itself {shown[caller]}" if caller else f"under self.{_ON_ASCEND}"
        shown[name] = f"called by {', '.join(sorted(callers))} only, {above}"
    return shown


def _means_ascend(judged: Judged) -> bool:
    """Tell whether the attribute is true for the sampling backend "ascend" alone."""
    values = [
        found.parent.value
        for path in judged.overlay.mentioning(_ON_ASCEND)
        for found in judged.near(path, _ON_ASCEND)
        if isinstance(found.node, ast.Attribute)
        and found.node.attr == _ON_ASCEND
        and isinstance(found.parent, ast.Assign)
        and found.node in found.parent.targets
    ]
    return bool(values) and all(
        ast.unparse(value).endswith(f".{symbols.SAMPLING_BACKEND} == '{symbols.ASCEND}'")
        for value in values
    )


def _guarded(use: calls.Use) -> bool:
    if use.call is None or use.found.function is None:
        return False
    return any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) == f"self.{_ON_ASCEND}"
        and any(inner is use.call for part in node.body for inner in ast.walk(part))
        for node in ast.walk(use.found.function)
    )


class _Version:
    """Fold one version of a module and take apart what the seams edit.

    ``parts`` holds the definitions by their dotted names, and the rest of the module under none;
    ``notes`` what was left out of each by design.
    """

    def __init__(self, module: ast.Module, symbols: Mapping[str, Sequence[str]]) -> None:
        self.notes: dict[str, list[str]] = {}
        self.parts: dict[str, ast.AST] = {}
        folded = _Fold(symbols, self.notes).visit(module)
        self._take_apart(folded, "", symbols)
        self.parts[""] = folded

    def _take_apart(self, node: ast.AST, scope: str, symbols: Collection[str]) -> None:
        for _, body in _bodies(node):
            for index, statement in enumerate(body):
                symbol = f"{scope}.{_name(statement)}".lstrip(".")
                if symbol in symbols:
                    self.parts[symbol] = statement
                    body[index] = ast.Expr(ast.Constant(symbol))
                elif isinstance(statement, ast.ClassDef):
                    self._take_apart(statement, symbol, symbols)

    def take_out_parameters(self, old: _Version) -> dict[str, list[str]]:
        """Take the parameters that the other version lacks out; return them by function."""
        added: dict[str, list[str]] = {}
        for symbol, node in self.parts.items():
            before = old.parts.get(symbol)
            name = symbol.rpartition(".")[2]
            if name in _ASCEND_PATH and isinstance(node, FunctionNode):
                known = len(before.args.args) if isinstance(before, FunctionNode) else 0
                plain = len(node.args.args) - len(node.args.defaults)
                more = [each.arg for each in node.args.args[known:plain]] if known else []
                if more and len(node.args.args) == plain:
                    del node.args.args[known:]
                    added[name] = more
                    self._note(symbol, f"{symbol} takes {', '.join(more)}")
        return added

    def take_out_arguments(self, added: Mapping[str, list[str]]) -> None:
        """Take what calls pass for parameters that were taken out."""
        for symbol, node in self.parts.items():
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                called = ast.unparse(call.func).rpartition(".")[2]
                more = added.get(called, [])
                passed = [ast.unparse(a).rpartition(".")[2] for a in call.args[-len(more) :]]
                if more and passed == more:
                    del call.args[-len(more) :]
                    self._note(symbol, f"{symbol} passes {', '.join(more)} to {called}")

    def _note(self, symbol: str, text: str) -> None:
        self.notes.setdefault(symbol, []).append(text)


def _is_claim(value: object) -> bool:
    """Tell the one string statement that the series takes out; every other one has to stay."""
    return isinstance(value, str) and value.strip() == attention_comment.CLAIM


class _Fold(ast.NodeTransformer):
    """Take every test for an NPU as false and drop what is then dead."""

    def __init__(self, symbols: Mapping[str, Sequence[str]], notes: dict[str, list[str]]) -> None:
        self._symbols = symbols
        self._notes = notes
        self._scope: list[str] = []

    def _symbol(self) -> str:
        names = [".".join(self._scope[: n + 1]) for n in range(len(self._scope))]
        return next((name for name in names if name in self._symbols), "")

    def _note(self, text: str) -> None:
        self._notes.setdefault(self._symbol(), []).append(text)

    def visit(self, node: ast.AST) -> Any:
        """Visit a node, and let no block become empty."""
        scoped = isinstance(node, FunctionNode | ast.ClassDef | ast.Assign | ast.AnnAssign)
        named = scoped and _name(node)
        if named:
            self._scope.append(named)
        done = super().visit(node)
        if named:
            self._scope.pop()
        if isinstance(done, ast.AST):
            for field_name, body in _bodies(done):
                self._drop_claim(done, field_name, body)
        return done

    def _drop_claim(self, node: ast.AST, name: str, body: list[ast.stmt]) -> None:
        first = int(name == "body" and isinstance(node, FunctionNode | ast.ClassDef | ast.Module))
        for index in range(len(body) - 1, first - 1, -1):
            statement = body[index]
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and _is_claim(value.value):
                self._note(f"the statement {value.value!r} stands without effect")
                del body[index]
        if not body and name == "body":
            body.append(ast.Pass())

    def visit_If(self, node: ast.If) -> Any:  # ast's own naming
        self.generic_visit(node)
        known = _known(node.test)
        if known is None:
            return node
        return (node.body if known else node.orelse) or None

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        known = _known(node.test)
        return node if known is None else node.body if known else node.orelse

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        decisive = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for value in node.values:
            known = _known(value)
            if known is decisive and all(map(_is_pure, values)):
                return value
            if known is not (not decisive):
                values.append(value)
        if len(values) < 2:
            return values[0] if values else ast.Constant(not decisive)
        node.values = values
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        known = _known(node.operand)
        if isinstance(node.op, ast.Not) and known is not None:
            return ast.Constant(not known)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] == "is_npu" and not node.args and not node.keywords:
            return ast.Constant(value=False)
        self.generic_visit(node)
        if called == "torch.compile":
            kept = [k for k in node.keywords if k.arg != "disable" or _known(k.value) is not False]
            if len(kept) < len(node.keywords):
                self._note("torch.compile is told disable=is_npu(), which is its default there")
                node.keywords = kept
            return node if node.args or kept else node.func
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        # The function itself, not called, is true everywhere.
        loaded = isinstance(node.ctx, ast.Load)
        return ast.Constant(value=False) if loaded and node.id == "_is_npu" else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        seams = self._symbols.get(self._symbol(), ())
        right = node.comparators[0]
        if _ACCEPTS in seams and isinstance(node.ops[0], ast.NotIn):
            self._drop_entry(right, "the list that models are refused by")
        if (
            {"sampling_backend", "radix_cache"} & set(seams)
            and len(node.ops) == 1
            and isinstance(node.ops[0], ast.Eq | ast.NotEq)
            and isinstance(node.left, ast.Attribute)
            and node.left.attr in _BACKENDS
            and isinstance(right, ast.Constant)
            and right.value == symbols.ASCEND
        ):
            option = f"--{node.left.attr.replace('_', '-')} {symbols.ASCEND}"
            differs = isinstance(node.ops[0], ast.NotEq)
            self._note(f"{ast.unparse(node)} is {str(differs).lower()} without {option}")
            return ast.Constant(value=differs)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        names = [alias.name for alias in node.names if not alias.asname]
        inside = self._scope and (node.module or "").startswith("sglang.srt.utils")
        if inside and names == ["is_npu"]:
            self._note(f"is_npu is imported from {node.module}")
            return None
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._without_entry(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return self._without_entry(node)

    def _without_entry(self, node: ast.Assign | ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if _name(node) in _LISTS or _ACCEPTS in self._symbols.get(self._symbol(), ()):
            self._drop_entry(node.value, _name(node))
        return node

    def _drop_entry(self, value: ast.expr | None, what: str) -> None:
        if not isinstance(value, ast.List | ast.Tuple | ast.Set):
            return
        for element in value.elts:
            if isinstance(element, ast.Constant) and element.value == symbols.ASCEND:
                self._note(f'{what} has "{symbols.ASCEND}"')
                value.elts.remove(element)
                break


def _known(node: ast.expr) -> bool | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, bool) else None


def _is_pure(node: ast.expr) -> bool:
    """Tell whether evaluating an expression does nothing."""
    return all(
        isinstance(part, _QUIET)
        or (isinstance(part, ast.Call) and ast.unparse(part) in [f"{name}()" for name in _PURE])
        for part in ast.walk(node)
    )


_QUIET = (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.Compare,
          ast.unaryop, ast.cmpop, ast.expr_context)  # fmt: skip


def _name(node: ast.AST) -> str:
    if isinstance(node, FunctionNode | ast.ClassDef):
        return node.name
    target = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    return target.id if isinstance(target, ast.Name) else ""


def _bodies(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            yield name, body
