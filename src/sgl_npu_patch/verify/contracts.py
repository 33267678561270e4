"""Check the NPU operators that a tree calls against the schemas of a real torch_npu.

What is looked at is the text of the calls: which operator, how many arguments, which keywords, and
the types of what is written out in the function. What cannot be told from the text (``*args``, an
operator passed on as a value) is reported as unknown, never as fine.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result, Verdict
from sgl_npu_patch.engine.text.plain import parse
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.verify import replacements
from sgl_npu_patch.verify.npu_calls import Use, find_uses
from sgl_npu_patch.verify.schema import Argument, Schema, overloads_in
from sgl_npu_patch.verify.torch_npu_wheel import TorchNpu, read

FOLDER = PurePosixPath("srt/hardware_backend/npu")
FILES = tuple(
    PurePosixPath("srt") / name
    for name in ("layers/attention/ascend_backend.py", "layers/layernorm.py", "layers/sampler.py")
)
VENDORED = FOLDER / "batch_invariant_ops" / "npu_ops.py"

_SEAMS = {"npu_top_k_top_p": "sampler"}
_OURS = ("npu", "atb", "torch_npu")
_PREFIXES = ("npu_", "_npu_")
_SHOWN = 3
_MEANING = "torch_npu has the operator {name}, and takes every call of it as it is written."


def check(tree: SourceTree, given: str) -> list[Result]:
    """Compare a tree with a torch_npu.

    Args:
        given: see `torch_npu_wheel.read`. Raises `Refused`.
    """
    offered = read(given)
    modules: dict[PurePosixPath, ast.Module] = {}
    results: list[Result] = []
    for path in _files(tree):
        try:
            modules[path] = parse(tree.read(path) or b"")
        except (SyntaxError, ValueError, RecursionError) as error:
            results.append(_unreadable(path, error))
    uses = [use for path, module in modules.items() for use in _uses(tree, path, module)]
    results += [*_operators(uses, offered), *_elsewhere(uses)]
    vendored = modules.get(tree.package / VENDORED)
    if vendored is not None:
        results += replacements.check(vendored, tree.package / VENDORED, offered)
    return results


def _files(tree: SourceTree) -> list[PurePosixPath]:
    """List what the deterministic path may run, as far as it names NPU operators."""
    found = {*tree.containing(b"torch_npu"), *tree.containing(b"torch.ops")}
    wanted = {tree.package / name for name in FILES}
    return sorted(
        path for path in found if path in wanted or path.is_relative_to(tree.package / FOLDER)
    )


def _uses(tree: SourceTree, path: PurePosixPath, module: ast.Module) -> Iterator[Use]:
    for use in find_uses(module, path):
        # Some of these files serve other devices too.
        if use.namespace in _OURS or path.is_relative_to(tree.package / FOLDER):
            yield use


def _unreadable(path: PurePosixPath, error: Exception) -> Result:
    return Result(
        id=f"contract.{path.stem}.unread",
        seam="",
        kind="contract",
        verdict="not-applicable",
        meaning="The calls of NPU operators in this file can be read.",
        message=f"{path} cannot be read by the Python that runs this: {error}",
        site=Site(path, 0, ""),
    )


def _operators(uses: Iterable[Use], offered: TorchNpu) -> Iterator[Result]:
    by_name: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        if use.namespace in _OURS and _is_operator(use, offered):
            by_name[use.operator].append(use)
    for name in sorted(by_name):
        overloads = overloads_in(offered.schemas, name)
        if not overloads:
            yield _missing(name, by_name[name], offered)
            continue
        namespace = "atb" if name in offered.atb else "npu"
        judged = [(use, *_judge(use, namespace, overloads)) for use in by_name[name]]
        wrong = [(use, found) for use, verdict, found in judged if verdict == "fail"]
        unknown = [(use, found) for use, verdict, found in judged if verdict == "not-applicable"]
        expected = " or ".join(overload.text for overload in overloads)
        if wrong:
            yield _result(
                name, "fail", wrong, f"torch_npu {offered.version} does not take this call",
                expected=expected,
                action="change the call, or run with a torch_npu that takes it",
            )  # fmt: skip
        elif len(unknown) < len(judged):
            done = [(use, "") for use, verdict, _ in judged if verdict == "pass"]
            yield _result(
                name, "pass", done, f"torch_npu {offered.version} takes {len(done)} calls of {name}"
            )
        if unknown:
            yield _result(
                name, "not-applicable", unknown, "unknown from the text", suffix=".unknown"
            )


def _packet(name: str) -> str:
    return name.partition(".")[0]


def _is_operator(use: Use, offered: TorchNpu) -> bool:
    """Tell operators of torch_npu from its other attributes and from other packages' operators."""
    return use.operator.startswith(_PREFIXES) or any(
        _packet(name) == use.operator for name in offered.schemas
    )


def _missing(name: str, uses: list[Use], offered: TorchNpu) -> Result:
    if name in offered.unread:
        why = f"torch_npu {offered.version} names {name}, but its schema cannot be read"
        return _result(name, "not-applicable", [(use, "") for use in uses], why)
    open_ones = [use for use in uses if not use.guard]
    if open_ones:
        return _result(
            name, "fail", [(use, "no such operator") for use in open_ones],
            f"torch_npu {offered.version} has no operator {name}",
            expected=f"an operator {name}",
            action="run with a torch_npu that has it (docs/torch-npu.md), or guard the call",
        )  # fmt: skip
    guards = ", ".join(sorted({use.guard for use in uses}))
    why = f"torch_npu {offered.version} has no operator {name}; every call is guarded by {guards}"
    return _result(name, "not-applicable", [(use, "") for use in uses], why)


def _elsewhere(uses: Iterable[Use]) -> Iterator[Result]:
    """List what other packages register, of which a torch_npu says nothing."""
    others: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        if use.namespace not in _OURS:
            others[f"torch.ops.{use.namespace}"].append(use)
        elif use.namespace == "npu" and not use.operator.startswith(_PREFIXES):
            others["torch.ops.npu, but not of torch_npu"].append(use)
    for place, found in sorted(others.items()):
        names = ", ".join(sorted({use.operator for use in found}))
        yield Result(
            id=f"contract.{place.removeprefix('torch.ops.').partition(',')[0]}.elsewhere",
            seam="",
            kind="contract",
            verdict="not-applicable",
            meaning="Operators of other packages are listed.",
            message=f"other packages register these operators ({place}): {names}",
            site=found[0].site,
        )


def _result(
    name: str, verdict: Verdict, found: list[tuple[Use, str]], message: str, *,
    expected: str = "", action: str = "", suffix: str = "",
) -> Result:  # fmt: skip
    places = [f"{use.site}{': ' + what if what else ''}" for use, what in found]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    listed = "; ".join(places[:_SHOWN]) + more
    return Result(
        id=f"contract.{name}{suffix}",
        seam=_SEAMS.get(name, "npu_ops"),
        kind="contract",
        verdict=verdict,
        meaning=_MEANING.format(name=name),
        message=message if verdict != "not-applicable" else f"{message}: {listed}",
        site=found[0][0].site if verdict != "pass" else None,
        expected=expected,
        found=listed if verdict == "fail" else "",
        code=found[0][0].code if verdict == "fail" else "",
        action=action,
    )


def _judge(use: Use, namespace: str, overloads: list[Schema]) -> tuple[Verdict, str]:
    """Say whether one call binds to one of the overloads, and what is wrong or unknown."""
    if use.namespace not in ("torch_npu", namespace):
        return "fail", f"it is an operator of torch.ops.{namespace}"
    if use.overload:
        overloads = [each for each in overloads if each.overload == use.overload]
        if not overloads:
            return "fail", f"no overload {use.overload}"
    if use.call is None:
        return "not-applicable", "not called here, but passed on"
    judged = [bind(each, use.call, use.kinds) for each in overloads]
    for verdict in ("pass", "not-applicable"):
        for each in judged:
            if each.verdict == verdict:
                return verdict, each.why
    nearest = min(judged, key=lambda each: each.why.count(";"))
    return "fail", nearest.why


@dataclass(frozen=True, slots=True)
class Binding:
    """Say whether a call binds to a schema; `why` names what is wrong or unknown."""

    verdict: Verdict
    why: str


def bind(schema: Schema, call: ast.Call, kinds: Mapping[ast.expr, frozenset[str]]) -> Binding:
    """Bind a call to a schema as torch does.

    Args:
        kinds: what each argument may be, as far as it can be told; see `npu_calls`.
    """
    given, wrong, unknown = _places(schema, call)
    for argument in schema.arguments:
        if argument.name in given:
            refused, always = _refused(argument, kinds.get(given[argument.name], frozenset()))
            text = f"{argument.type} {argument.name} takes no {', '.join(refused)}"
            if refused:
                (wrong if always else unknown).append(text)
        elif argument.required and not unknown:
            wrong.append(f"{argument.name} is missing")
    if wrong:
        return Binding("fail", "; ".join(wrong))
    return Binding("not-applicable" if unknown else "pass", "; ".join(unknown))


def _places(schema: Schema, call: ast.Call) -> tuple[dict[str, ast.expr], list[str], list[str]]:
    """Give each argument its value; say what has no place, and what cannot be told."""
    given: dict[str, ast.expr] = {}
    wrong: list[str] = []
    unknown: list[str] = []
    places = schema.positional
    for place, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            unknown.append(f"*{ast.unparse(value.value)}")
            break
        if place >= len(places):
            wrong.append(f"takes {len(places)} arguments by place, {len(call.args)} given")
            break
        given[places[place].name] = value
    names = {each.name for each in schema.arguments}
    for keyword in call.keywords:
        if keyword.arg is None:
            unknown.append(f"**{ast.unparse(keyword.value)}")
        elif keyword.arg not in names:
            wrong.append(f"has no argument {keyword.arg}")
        elif keyword.arg in given:
            wrong.append(f"{keyword.arg} is given twice")
        else:
            given[keyword.arg] = keyword.value
    return given, wrong, unknown


_NUMBERS = {"int", "bool"}
_ACCEPTED = {
    "int": {"int", "bool", "dtype", "tensor"},
    "SymInt": {"int", "bool", "tensor"},
    "float": {"int", "bool", "float", "tensor"},
    "bool": {"None", "int", "bool", "float", "tensor"},
    "str": {"str"},
    "Scalar": {"int", "bool", "float", "dtype"},
    "ScalarType": {"int", "bool", "dtype", "tensor"},
    "Tensor": {"None", "tensor"},
    "int[]": {"[]", "[int]", "[]?", "ints"},
    "SymInt[]": {"[]", "[int]", "[]?", "ints", "tensor"},
    "float[]": {"[]", "[int]", "[float]", "[]?", "ints", "floats"},
    "Tensor[]": {"[]", "[]?"},
    "Tensor?[]": {"[]", "[]?", "[None]", "tensor"},
}
"""What torch's argument parser takes for a type, as `tests/verify/test_contracts.py` finds it."""


def accepts(type_: str, kind: str) -> bool:
    """Say whether a type of a schema takes a kind of value; a type not in the table takes all.

    Args:
        kind: a name of a type, ``[int]`` for a list of it (``[]?`` if that is not known), ``ints``
            and ``floats`` for numpy's arrays.
    """
    bare = re.sub(r"\([^)]*\)| ", "", type_)
    optional = bare.endswith("?")
    bare = bare.removesuffix("?")
    size = bare.partition("[")[2].removesuffix("]")
    bare = bare.replace(f"[{size}]", "[]")
    if bare not in _ACCEPTED or (optional and kind == "None"):
        return True
    return kind in _ACCEPTED[bare] or bool(size and bare == "int[]" and kind in _NUMBERS)


def _refused(argument: Argument, kinds: frozenset[str]) -> tuple[list[str], bool]:
    refused = sorted(kind for kind in kinds if not accepts(argument.type, kind))
    return refused, len(refused) == len(kinds)
