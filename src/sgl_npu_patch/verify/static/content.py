"""Check lists, gates and branches by what they say, apart from how the codemods recognise them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from sgl_npu_patch.codemods.upstream import attention, handler, symbols
from sgl_npu_patch.codemods.upstream.symbols import ASCEND
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.verify.findings import Finding, NotApplicable
from sgl_npu_patch.verify.static.judged import FunctionNode, Judged, check_of

_DEVICES = {"is_cuda_alike": "CUDA", "is_cuda": "CUDA", "is_xpu": "XPU", "is_npu": "NPU"}


@check_of("backend_lists")
def lists_ascend_once(judged: Judged, seam: str) -> Iterator[Finding]:
    """The list of attention backends holds "ascend" exactly once."""
    del seam
    entries = list(_entries(judged, symbols.CHOICES.name))
    if not entries:
        raise NotApplicable(f"no module assigns {symbols.CHOICES}")
    count = sum(values.count(ASCEND) for _, values in entries)
    if count != 1:
        site, values = entries[0]
        yield Finding(
            site,
            f'"{ASCEND}" exactly once in {symbols.CHOICES}',
            f"{count} times: {values}",
            "run sgl-npu-patch apply" if not count else "take the other entries out",
        )


@check_of("radix_cache")
def gate_follows_prefill(judged: Judged, seam: str) -> Iterator[Finding]:
    """The radix cache is off for ascend exactly where prefill ignores a cached prefix."""
    del seam
    try:
        unsafe = attention.ignores_prefix(judged.view())
    except AnchorError as error:
        raise NotApplicable(f"what prefill reads cannot be told: {error}") from error
    gates = [
        (node, holds is inside)
        for _, function in _handlers(judged)
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        for block, inside in ((node.body, True), (node.orelse, False))
        if _disables(block)
        if (holds := _holds_for_ascend(judged, function, node.test)) is not None
    ]
    shut = [gate for gate in gates if gate[1]]
    if bool(shut) == (unsafe is not None):
        return
    path, function = _handlers(judged)[0]
    line, shown = function.lineno, ""
    for node, _ in (shut or gates)[:1]:
        line, shown = node.lineno, f"if {ast.unparse(node.test)}:"
    off = "the radix cache off for ascend, whose prefill ignores what it holds"
    on = "the radix cache on for ascend, whose prefill reads what it holds"
    yield Finding(
        Site(path, line, symbols.DISABLE_RADIX_CACHE),
        off if unsafe else on,
        f"it is {'off' if shut else 'on'}, by {len(gates)} conditions on the attention backend",
        f"see the prefill at {unsafe}" if unsafe else f"see {symbols.SUPPORTED}",
        shown,
    )


@check_of("radix_cache")
def no_other_list_has_ascend(judged: Judged, seam: str) -> Iterator[Finding]:
    """The handler's other lists, as that of DeepSeek models, are without "ascend"."""
    del seam
    if judged.adapted:
        raise NotApplicable("upstream's own adaptation decides about DeepSeek models")
    for path, function in _handlers(judged):
        for node in ast.walk(function):
            values = _strings(node)
            if values is not None and ASCEND in values:
                yield Finding(
                    Site(path, getattr(node, "lineno", 0), function.name),
                    f'lists inside {function.name} without "{ASCEND}"',
                    ast.unparse(node),
                    f"take the entry out; it belongs into {symbols.CHOICES} alone",
                )


@check_of("sampling_backend")
def keeps_ascend(judged: Judged, seam: str) -> Iterator[Finding]:
    """Deterministic mode leaves a sampling backend "ascend" alone where it draws by seed."""
    status = judged.outcomes[seam].status
    if status == "not-needed":
        raise NotApplicable(f"not-needed: {judged.outcomes[seam].reason}")
    wanted = status != "withheld"
    for path, function in _handlers(judged, *symbols.OVERRIDE.names):
        for node, tests in _forcing(function):
            guarded = any(_keeps(test) for test in tests)
            if guarded != wanted:
                yield Finding(
                    Site(path, node.lineno, function.name),
                    f'"pytorch" forced {"but not" if wanted else "also"} in the place of "ascend"',
                    "under " + " and ".join(map(ast.unparse, tests)) if tests else "always",
                    "run sgl-npu-patch apply" if wanted else "take the guard out",
                    ast.unparse(node)[:200],
                )


@check_of("device_dispatch")
def answers_npu(judged: Judged, seam: str) -> Iterator[Finding]:
    """Each device's branch gives its own dispatch key, an NPU's "NPU"."""
    if judged.outcomes[seam].status == "not-needed":
        raise NotApplicable(f"not-needed: {judged.outcomes[seam].reason}")
    for path, function in judged.functions_named(symbols.DISPATCH.name):
        given = _answers(function)
        site = Site(path, function.lineno, function.name)
        if given.get("NPU") != {"NPU"}:
            found = ", ".join(sorted(given.get("NPU", set()))) or "nothing"
            yield Finding(site, '"NPU" under is_npu()', found, "run sgl-npu-patch apply")
        for device in ("CUDA", "XPU"):
            if given.get(device, {device}) != {device}:
                found = ", ".join(sorted(given[device]))
                yield Finding(site, f'"{device}" on its own devices', found, "restore that branch")


def _answers(function: FunctionNode) -> dict[str, set[str]]:
    given: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Call):
            device = _DEVICES.get(ast.unparse(node.test.func).rpartition(".")[2])
            constants = {
                str(part.value)
                for statement in node.body
                if isinstance(statement, ast.Assign | ast.Return)
                for part in (ast.walk(statement.value) if statement.value else ())
                if isinstance(part, ast.Constant)
            }
            if device:
                given.setdefault(device, set()).update(constants)
    return given


def _handlers(judged: Judged, *more: str) -> list[tuple[PurePosixPath, FunctionNode]]:
    """Find the handler of deterministic mode, and what it hands parts of its branch to."""
    wanted = {*symbols.HANDLER.names, *more}
    view = judged.view()
    try:
        spot = symbols.HANDLER.find(view)
        wanted |= {part.block.name for part, _ in handler.parts(view, spot)}
    except AnchorError:
        pass
    found = [each for name in sorted(wanted) for each in judged.functions_named(name)]
    if not found:
        raise NotApplicable("no handler of deterministic mode is found")
    return found


def _entries(judged: Judged, name: str) -> Iterator[tuple[Site, list[str]]]:
    """Yield what module-level statements put into a list of strings."""
    for path in judged.overlay.mentioning(name):
        for node in judged.module(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            named = any(isinstance(t, ast.Name) and t.id == name for t in targets)
            called = isinstance(node, ast.Expr) and f"{name}." in ast.unparse(node)
            if named or called:
                values = [
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                yield Site(path, node.lineno, name), values


def _strings(node: ast.AST) -> list[str] | None:
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(node.elts) else None


def _disables(body: Sequence[ast.stmt]) -> bool:
    """Tell whether a block turns the radix cache off, by assignment or by declaring it."""
    for statement in body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "True":
            targets = [t for t in statement.targets if isinstance(t, ast.Attribute)]
            if any(t.attr == symbols.DISABLE_RADIX_CACHE for t in targets):
                return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            given = {k.arg: ast.unparse(k.value) for k in statement.value.keywords}
            if given.get(symbols.DISABLE_RADIX_CACHE) == "True":
                return True
    return False


def _holds_for_ascend(judged: Judged, function: FunctionNode, test: ast.expr) -> bool | None:
    """Evaluate a comparison of the attention backend for "ascend", None for another test."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if ast.unparse(test.left).rpartition(".")[2] != "attention_backend":
        return None
    right = test.comparators[0]
    values: Sequence[str] | None = _strings(right)
    if isinstance(right, ast.Constant):
        values = [str(right.value)]
    elif isinstance(right, ast.Name):
        local = [
            _strings(node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == right.id
        ]
        entries = [value for _, some in _entries(judged, right.id) for value in some]
        values = local[0] if local else entries or None
    if values is None:
        return None
    inside = ASCEND in values
    return inside if isinstance(test.ops[0], ast.Eq | ast.In) else not inside


def _forcing(function: FunctionNode) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
    """Yield the statements that make the sampling backend "pytorch", with the tests above."""

    def walk(
        body: Sequence[ast.stmt], tests: list[ast.expr]
    ) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
        for node in body:
            if isinstance(node, ast.If):
                yield from walk(node.body, [*tests, node.test])
                yield from walk(node.orelse, [*tests, _negated(node.test)])
            elif _forces(node):
                choice = getattr(node, "value", None)
                if isinstance(choice, ast.IfExp):
                    other = "'pytorch'" in ast.unparse(choice.orelse)
                    tests = [*tests, _negated(choice.test) if other else choice.test]
                yield node, tests
            else:
                for name in ("body", "orelse", "finalbody"):
                    yield from walk(getattr(node, name, []), tests)

    yield from walk(function.body, [])


def _forces(node: ast.stmt) -> bool:
    text = ast.unparse(node) if isinstance(node, ast.Assign | ast.Return | ast.Expr) else ""
    if "'pytorch'" not in text or symbols.SAMPLING_BACKEND not in text:
        return False
    return not isinstance(node, ast.Expr) or "=" in text


def _keeps(test: ast.expr) -> bool:
    """Tell whether a test is false for the sampling backend "ascend"."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_keeps, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand).endswith(f".{symbols.SAMPLING_BACKEND} == '{ASCEND}'")
    return ast.unparse(test).endswith(f".{symbols.SAMPLING_BACKEND} != '{ASCEND}'")


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)
