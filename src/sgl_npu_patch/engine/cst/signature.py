"""Hand a value down to a function: a parameter at its end, and an argument at each call.

New parameters have no default, so that a forgotten caller fails loudly; the arguments are passed
by position. What is there already is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from sgl_npu_patch.engine.cst import edit, layout, read
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.text.excerpt import excerpt


def has_parameters(function: cst.FunctionDef, *names: str) -> bool:
    """Report whether a function takes all of these by position."""
    return set(names) <= {p.name.value for p in read.parameters(function)}


def append_parameters(function: cst.FunctionDef, *sources: str) -> cst.FunctionDef:
    """Append those of some parameters that a function lacks, each given as ``name: type``.

    Raises:
        AnchorError: some stand elsewhere than at the end, or none can be appended.
    """
    wanted = [source.split(":")[0] for source in sources]
    new = [source for source in sources if not has_parameters(function, source.split(":")[0])]
    old = function.params.params
    there = len(sources) - len(new)
    names = [p.name.value for p in old]
    doubled = next((p for p in old if names.count(p.name.value) > 1), None)
    if doubled is not None:
        raise _of_parameters(
            function,
            doubled,
            expected="each name once",
            action="take the parameter that a merge left out again",
        )
    if there and names[-there:] != wanted[:there]:
        raise _of_parameters(
            function,
            next(p for p in read.parameters(function) if p.name.value in wanted),
            expected=f"{', '.join(wanted[:there])} as the last of them",
            action=f"put {', '.join(wanted)} last, at the calls too",
        )
    if not new:
        return function
    hindrance = _hindrance(function)
    if hindrance is not None:
        raise _of_parameters(
            function,
            hindrance,
            expected="positional ones without defaults",
            action="make all parameters positional, without defaults",
        )
    return layout.append_parameter(function, *new, indent=_indent(function))


def _hindrance(function: cst.FunctionDef) -> cst.CSTNode | None:
    """Return what makes it impossible to append a parameter without a default."""
    params = function.params
    # Callers pass nothing by keyword, so parameters of that kind stay at their defaults.
    required = next((param for param in params.kwonly_params if param.default is None), None)
    last = params.params[-1] if params.params else None
    starred = params.star_arg if isinstance(params.star_arg, cst.Param) else None
    defaulted = last if last is not None and last.default is not None else None
    positional = params.posonly_params[0] if params.posonly_params else None
    found = defaulted or required or params.star_kwarg or positional or starred
    return found if last is not None else found or params


def _of_parameters(
    function: cst.FunctionDef, culprit: cst.CSTNode, *, expected: str, action: str
) -> AnchorError:
    return AnchorError(
        sought=f"the parameters of {function.name.value}",
        expected=expected,
        found=excerpt(read.code(function.params), read.code(culprit)) or "none",
        action=action,
    )


def append_arguments(
    function: cst.FunctionDef, called: Sequence[str], *values: str
) -> cst.FunctionDef:
    """Append those of some values that a function does not pass yet where it calls another.

    Args:
        called: the names that the other may have.

    Raises:
        AnchorError: the call passes something by keyword, or stands in no plain statement.
    """
    passed = [passes(function, called, value.rpartition(".")[2]) for value in values]
    given = [value for value, there in zip(values, passed, strict=True) if there]
    calls = read.calls(function, *called)
    if len(given) == len(values) and calls and all(_ends_with(c, given) for c in calls):
        return function
    missing = values[len(given) :]
    action = f"end the call with {', '.join(map(_by_keyword, values))}"
    for step in read.steps(function):
        if not isinstance(step.node, cst.SimpleStatementLine):
            continue
        for call in read.calls(step.node, *called):
            unnamed = call.args and not any(arg.star or arg.keyword for arg in call.args)
            if not unnamed or not missing or not _ends_with(call, values[: len(given)]):
                named = next((read.code(a) for a in call.args if a.star or a.keyword), "")
                raise AnchorError(
                    sought=f"the call of {' or '.join(called)}",
                    expected="positional arguments only, "
                    f"none of {', '.join(values)} but at the end",
                    found=excerpt(read.code(call), named),
                    action=action,
                )
            indent = _indent(function) + 4 * len(step.above)
            width = indent + len(read.code(step.node.with_changes(leading_lines=[])))
            return edit.swap(
                function, call, layout.append_argument(call, *missing, indent=indent, width=width)
            )
    raise AnchorError(
        sought=f"the call of {' or '.join(called)}",
        expected=f"a statement of {function.name.value} itself, on lines of its own",
        found="a call in another place",
        action=action,
    )


def _by_keyword(value: str) -> str:
    return f"{value.rpartition('.')[2]}={value}"


def passes(function: cst.CSTNode, called: Sequence[str], *values: str) -> bool:
    """Report whether every call of a function hands on each of some values."""
    return all(
        any(
            read.last_name(arg.value) == value
            for arg in call.args
            if arg.keyword is None or arg.keyword.value == value
        )
        for call in read.calls(function, *called)
        for value in values
    )


def _ends_with(call: cst.Call, values: Sequence[str]) -> bool:
    """Report whether a call's last arguments are those, in that order or by keyword.

    Keyword arguments of other names, such as a batch's flag, do not count.
    """
    names = [value.rpartition(".")[2] for value in values]
    args = [a for a in call.args if a.keyword is None or a.keyword.value in names]
    first = len(args) - len(values)
    last = args[max(first, 0) :]
    again = any(read.code(arg.value) in values for arg in args[: max(first, 0)])
    return (
        not again
        and len(last) == len(values)
        and all(
            read.code(arg.value) == value if arg.keyword is None else arg.keyword.value == name
            for arg, value, name in zip(last, values, names, strict=True)
        )
    )


def _indent(function: cst.FunctionDef) -> int:
    """Return how far a function is indented: a method, known by its first parameter, is."""
    found = read.parameters(function)
    return 4 if found and found[0].name.value in ("self", "cls") else 0
