"""Check that what npu_ops puts in an operator's place takes all that the operator takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.verify.schema import Schema, overloads_in
from sgl_npu_patch.verify.torch_npu_wheel import TorchNpu

_REBIND = "_rebind"
Definition = ast.FunctionDef | ast.ClassDef


def check(module: ast.Module, path: PurePosixPath, offered: TorchNpu) -> list[Result]:
    """Judge each operator that the vendored module rebinds; one result each."""
    calls = [
        (function, node)
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == _REBIND
    ]
    constants = constants_of(module)
    results = []
    for function, call in calls:
        name = text_of(call.args[1], constants)
        optional = len(call.args) > 3 or bool(call.keywords)
        overloads = overloads_in(offered.schemas, name)
        site = Site(path, call.lineno, function.name)
        if not overloads:
            verdict: Verdict = "not-applicable" if optional else "fail"
            why = f"torch_npu {offered.version} has no operator {name}"
            results.append(_result(name, verdict, why, site))
            continue
        wrong = [
            problem
            for definition in _definitions(call.args[2], function, module)
            for problem in _problems(definition, overloads)
        ]
        expected = " or ".join(each.text for each in overloads)
        if wrong:
            why = f"the replacement of {name} takes less than the operator: {wrong[0]}"
            found = "; ".join(wrong)
            results.append(_result(name, "fail", why, site, expected=expected, found=found))
        else:
            why = f"the replacement of {name} takes all that torch_npu {offered.version}'s takes"
            results.append(_result(name, "pass", why, site))
    return results


def _result(
    name: str, verdict: Verdict, message: str, site: Site, *, expected: str = "", found: str = ""
) -> Result:
    return Result(
        id=f"contract.{name}.replacement",
        seam="npu_ops",
        kind="contract",
        verdict=verdict,
        meaning="What replaces an operator takes all that the operator takes.",
        message=message,
        site=site,
        expected=expected,
        found=found,
        action="run with a torch_npu that docs/torch-npu.md lists" if verdict == "fail" else "",
    )


def constants_of(module: ast.Module) -> dict[str, str]:
    """Collect the strings that names of a module stand for."""
    found: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = text_of(node.value, found)
            if text:
                found[node.targets[0].id] = text
    return found


def text_of(node: ast.expr, constants: dict[str, str]) -> str:
    """Give the string that an expression is, empty if that cannot be told."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id, "")
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each, constants) for each in node.values)
    return ""


def _definitions(
    node: ast.expr, function: ast.FunctionDef, module: ast.Module
) -> Iterator[Definition]:
    """Find the module's own definitions that an expression may be.

    The extension's operators are not among them: their schemas are not in torch_npu.
    """
    top = {each.name: each for each in module.body if isinstance(each, Definition)}
    for part in ast.walk(node):
        if not isinstance(part, ast.Name):
            continue
        if part.id in top:
            yield top[part.id]
            continue
        for body in (function.body, module.body):
            for each in (inner for statement in body for inner in ast.walk(statement)):
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == part.id:
                    for inner in ast.walk(each.value):
                        if isinstance(inner, ast.Name) and inner.id in top:
                            yield top[inner.id]


def _problems(definition: Definition, overloads: list[Schema]) -> Iterator[str]:
    if isinstance(definition, ast.FunctionDef):
        for overload in overloads:
            yield from _narrower(definition, overload, bound=False)
        return
    methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
    if "__call__" not in methods:
        yield f"{definition.name} cannot be called"
        return
    for overload in overloads:
        yield from _narrower(methods["__call__"], overload, bound=True)
        own = methods.get(overload.overload)
        if own is None and "__getattr__" not in methods:
            yield f"{definition.name} has no overload {overload.overload}"
        elif own is not None and not own.decorator_list:
            yield from _narrower(own, overload, bound=True)


def _narrower(function: ast.FunctionDef, schema: Schema, *, bound: bool) -> Iterator[str]:
    """Say what a schema takes and a function does not, or by another default."""
    signature = function.args
    names = [each.arg for each in [*signature.posonlyargs, *signature.args]][int(bound) :]
    only = {each.arg for each in signature.kwonlyargs}
    defaults = dict(zip(reversed(names), reversed(signature.defaults), strict=False))
    defaults |= {
        each.arg: value
        for each, value in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
        if value is not None
    }
    for place, argument in enumerate(schema.positional):
        by_place = names[place] if place < len(names) else ""
        if by_place != argument.name and not (signature.vararg and place >= len(names)):
            yield f"argument {place + 1} of {function.name} is {by_place or 'missing'}, not " + (
                argument.name
            )
    for argument in schema.arguments:
        known = argument.name in names or argument.name in only
        if not known and signature.kwarg is None:
            yield f"{function.name} has no argument {argument.name}"
        elif known and not argument.required:
            default = defaults.get(argument.name)
            if default is None:
                yield f"{function.name} demands {argument.name}"
            elif ast.unparse(default) != repr(argument.default):
                yield (
                    f"{argument.name} is {ast.unparse(default)} by default, not {argument.default}"
                )
    known_names = {each.name for each in schema.arguments}
    for name in [*names, *only]:
        if name not in known_names and name not in defaults:
            yield f"{function.name} demands {name}, which the operator does not have"
