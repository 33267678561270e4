"""Find the handler of deterministic inference and its branch; nothing here edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.symbols import ENABLED
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.cst.pattern import match_any
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.view import Spot, View


@dataclass(frozen=True, slots=True)
class Branch:
    """What runs in deterministic mode: an ``if``'s body, or the rest of a function.

    ``args`` names the object whose attributes the server's arguments are; ``first`` is the index
    of the first statement that belongs to it.
    """

    node: cst.If | cst.FunctionDef
    args: str
    first: int = 0

    @property
    def body(self) -> Sequence[cst.BaseStatement]:
        """Return the statements that always run in deterministic mode."""
        assert isinstance(self.node.body, cst.IndentedBlock)
        return self.node.body.body[self.first :]

    def steps(self) -> Iterator[Step]:
        """Yield every statement inside, at any depth."""
        for step in read.steps(self.node):
            top = step.node if len(step.above) == 1 else step.above[1][0]
            if step.above[0][1] and any(top is statement for statement in self.body):
                yield step

    def runs(self, step: Step) -> bool:
        """Report whether a statement always runs in deterministic mode."""
        return step.above[-1] == (self.node, True) and any(step.node is s for s in self.body)


def enabled_branch(function: cst.FunctionDef) -> Branch:
    """Find the handler's ``if ...enable_deterministic_inference``, or what follows its reverse."""
    top = [
        step
        for step in read.steps(function)
        if len(step.above) == 1 and isinstance(step.node, cst.If)
    ]
    found = [
        Branch(step.node, attribute.removesuffix(f".{ENABLED}"))
        for step in top
        if isinstance(step.node, cst.If)
        and (attribute := read.dotted(step.node.test)).endswith(f".{ENABLED}")
        and isinstance(step.node.body, cst.IndentedBlock)
    ]
    found += [
        Branch(function, attribute.removesuffix(f".{ENABLED}"), step.index + 1)
        for step in top
        if (attribute := _left_unless(step)).endswith(f".{ENABLED}")
        and step.index + 1 < len(step.block)
    ]
    return read.only(
        found,
        lambda count: AnchorError(
            sought=f"if ...{ENABLED} in {function.name.value}",
            expected="exactly one, directly in the function and with a block of its own",
            found=str(count),
            action=as_released("the branch"),
        ),
    )


def _left_unless(step: Step) -> str:
    """Return the name of the attribute without which a function is left at once."""
    forms = ("if not $flag:\n    return\n", "if not $flag:\n    return None\n")
    found = match_any(forms, step.node)
    return read.dotted(found["flag"]) if found else ""


def parts(view: View, spot: Spot) -> Iterator[tuple[Spot, Branch]]:
    """Find the methods that hold a part of the handler's branch.

    A part runs whenever the branch does, and at no other time: the branch calls it without
    arguments, nothing else does, the package has no other function of its name, and no return
    leaves it early.
    """
    branch = enabled_branch(spot.function)
    for step in branch.steps():
        call = read.statement_call(step.node)
        name = read.last_name(call.func) if call is not None else ""
        if (
            call is None
            or call.args
            or not branch.runs(step)
            or read.dotted(call.func) != f"{branch.args}.{name}"
            or not view.has(name, "function")
        ):
            continue
        part = view.find_function(name)
        function = part.function
        names = [p.name.value for p in read.find_all(function.params, cst.Param)]
        plain = len(names) == 1 and not function.decorators and function.asynchronous is None
        block = isinstance(function.body, cst.IndentedBlock)
        left = list(read.find_all(function, cst.Return))
        if plain and block and not left and view.find_caller(name).site == spot.site:
            yield part, Branch(function, names[0])
