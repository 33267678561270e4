"""Read the places in SGLang that more than one seam stands on; nothing here edits."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from sgl_npu_patch.engine import nodes, vendor
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.nodes import Step
from sgl_npu_patch.engine.view import Spot, View

ASCEND = "ascend"
HANDLERS = ("_handle_deterministic_inference", "handle_deterministic_inference")
"""A method of ServerArgs up to 0.5.18, a module-level function from 0.5.19 on."""
ENABLED = "enable_deterministic_inference"
ENABLE = "enable_batch_invariant_mode"
FORWARD_ASCEND = "_forward_ascend_backend"
SAMPLE_FROM_LOGITS = "_sample_from_logits"
SAMPLE_ASCEND = "top_k_top_p_min_p_sampling_from_logits_ascend"
SAMPLE_ASCEND_PROBS = "top_k_top_p_min_p_sampling_from_probs_ascend"
DRAW = "multinomial_with_seed"
FUSED_ATTENTION = "npu_fused_infer_attention_score"

OURS = "npu_ops"
"""The vendored module of the operators, and the mark of what hands over to it."""

UPSTREAM_OPS = "npu_batch_invariant_ops"
"""The module of upstream's own adaptation, in the folder where ours go."""


def handler(view: View) -> Spot:
    """Find the function that adapts the server's arguments to deterministic inference."""
    name = next((name for name in HANDLERS if view.has(name, "function")), HANDLERS[0])
    return view.find_function(name)


@dataclass(frozen=True, slots=True)
class Branch:
    """Hold what runs in deterministic mode: an ``if``'s body, or the rest of a function.

    ``args`` names the object whose attributes the server's arguments are; ``first`` is the index
    of the first statement that belongs to it.
    """

    node: cst.If | cst.FunctionDef
    args: str
    first: int = 0

    @property
    def body(self) -> Sequence[cst.BaseStatement]:
        """Give the statements that always run in deterministic mode."""
        assert isinstance(self.node.body, cst.IndentedBlock)
        return self.node.body.body[self.first :]

    def steps(self) -> Iterator[Step]:
        """Yield every statement inside, at any depth."""
        for step in nodes.steps(self.node):
            top = step.node if len(step.above) == 1 else step.above[1][0]
            if step.above[0][1] and any(top is statement for statement in self.body):
                yield step

    def runs(self, step: Step) -> bool:
        """Tell whether a statement always runs in deterministic mode."""
        return step.above[-1] == (self.node, True) and any(step.node is s for s in self.body)


def enabled_branch(function: cst.FunctionDef) -> Branch:
    """Find the handler's ``if ...enable_deterministic_inference``, or what follows its reverse."""
    top = [
        step
        for step in nodes.steps(function)
        if len(step.above) == 1 and isinstance(step.node, cst.If)
    ]
    found = [
        Branch(step.node, attribute.removesuffix(f".{ENABLED}"))
        for step in top
        if isinstance(step.node, cst.If)
        and (attribute := nodes.dotted(step.node.test)).endswith(f".{ENABLED}")
        and isinstance(step.node.body, cst.IndentedBlock)
    ]
    found += [
        Branch(function, attribute.removesuffix(f".{ENABLED}"), step.index + 1)
        for step in top
        if (attribute := _left_unless(step)).endswith(f".{ENABLED}")
        and step.index + 1 < len(step.block)
    ]
    return nodes.only(
        found,
        lambda count: AnchorError(
            sought=f"if ...{ENABLED} in {function.name.value}",
            expected="exactly one, directly in the function and with a block of its own",
            found=str(count),
            action="see how the handler changed upstream and adapt codemods/_places.py",
        ),
    )


def _left_unless(step: Step) -> str:
    """Name the attribute without which a function is left at once."""
    node = step.node
    if (
        isinstance(node, cst.If)
        and node.orelse is None
        and isinstance(node.test, cst.UnaryOperation)
        and isinstance(node.test.operator, cst.Not)
        and len(node.body.body) == 1
        and _is_plain_return(node.body.body[0])
    ):
        return nodes.dotted(node.test.expression)
    return ""


def _is_plain_return(statement: cst.CSTNode) -> bool:
    returned = nodes.small(statement, cst.Return) or statement
    return isinstance(returned, cst.Return) and (
        returned.value is None or nodes.dotted(returned.value) == "None"
    )


def parts(view: View, spot: Spot) -> Iterator[tuple[Spot, Branch]]:
    """Find the methods that hold a part of the handler's branch.

    A part runs whenever the branch does, and at no other time: the branch calls it without
    arguments, nothing else does, the package has no other function of its name, and no return
    leaves it early.
    """
    branch = enabled_branch(spot.function)
    for step in branch.steps():
        call = nodes.statement_call(step.node)
        name = nodes.last_name(call.func) if call is not None else ""
        if (
            call is None
            or call.args
            or not branch.runs(step)
            or nodes.dotted(call.func) != f"{branch.args}.{name}"
            or not view.has(name, "function")
        ):
            continue
        part = view.find_function(name)
        function = part.function
        names = [p.name.value for p in nodes.find_all(function.params, cst.Param)]
        plain = len(names) == 1 and not function.decorators and function.asynchronous is None
        block = isinstance(function.body, cst.IndentedBlock)
        left = list(nodes.find_all(function, cst.Return))
        if plain and block and not left and view.find_caller(name).site == spot.site:
            yield part, Branch(function, names[0])


def native_enable(view: View) -> Site | None:
    """Tell whether enabling the mode runs upstream's own NPU branch, and where it stands.

    Not where our own hand-over stands before it.
    """
    if _hands_over(view.find_function(ENABLE)):
        return None
    spot = native_branch(view)
    return None if spot is None else spot.site


def native_branch(view: View) -> Spot | None:
    """Find the function with upstream's own NPU branch, whether or not the branch is reached.

    Raises:
        AnchorError: what the branch needs is missing, or would be imported on every device.
    """
    spot = view.find_function(ENABLE)
    modules = {
        nodes.last_name(imported.module) for imported in nodes.find_all(spot.node, cst.ImportFrom)
    }
    if UPSTREAM_OPS not in modules and not _imports_upstream_ops(view, spot):
        return None
    if not _hands_over(spot):
        require_upstream_ops(view, spot)
        require_torch_npu(view, spot)
    return spot


def _hands_over(enable: Spot) -> bool:
    return any(name.value == OURS for name in nodes.find_all(enable.node, cst.Name))


def _imports_upstream_ops(view: View, spot: Spot) -> bool:
    """Tell whether a function registers what its module imports of upstream's own.

    Raises:
        AnchorError: the import would run on every device.
    """
    source = view.source(spot.path)
    if UPSTREAM_OPS not in source.text:
        return False
    registered = {
        name.value
        for call in nodes.calls(spot.node, "impl")
        for arg in call.args[1:2]
        for name in nodes.find_all(arg.value, cst.Name)
    }
    imports = [
        block
        for block in source.blocks
        if block.kind == "import" and block.name in registered and UPSTREAM_OPS in source.cut(block)
    ]
    if any(not block.guards for block in imports):
        raise AnchorError(
            sought=f"the import of {UPSTREAM_OPS}",
            expected="one inside the function or under a condition: it imports torch_npu",
            found="one that runs on every device",
            where=(Site(source.path, imports[0].line, UPSTREAM_OPS), spot.site),
            action=f"move the import into {spot.block.name}, or under if is_npu()",
        )
    return bool(imports)


def require_torch_npu(view: View, spot: Spot) -> None:
    """Insist that the name torch_npu, where a function uses it, is imported by somebody."""
    used = any(name.value == "torch_npu" for name in nodes.find_all(spot.node, cst.Name))
    own = any(
        nodes.dotted(alias.name) == "torch_npu"
        for statement in nodes.find_all(spot.node, cst.Import)
        for alias in statement.names
    )
    if used and not own and not view.source(spot.path).named("torch_npu", "import"):
        raise AnchorError(
            sought=f"torch_npu in {spot.path.name}",
            expected=f"an import of it, which {spot.block.name} uses",
            found="none",
            where=(spot.site,),
            action="import torch_npu under if is_npu()",
        )


def require_upstream_ops(view: View, spot: Spot) -> None:
    """Insist that the module which upstream's own branch imports is in the tree."""
    if view.overlay.read(view.package / vendor.FOLDER / f"{UPSTREAM_OPS}.py") is None:
        raise AnchorError(
            sought=f"{UPSTREAM_OPS}.py",
            expected=f"the module that {ENABLE} imports on an NPU",
            found="no such file in the package",
            where=(spot.site,),
            action="restore the file from upstream; this tool never writes it",
        )


def ascend_path(view: View) -> Literal["none", "probabilities", "logits"]:
    """Tell which Ascend path the sampler has: none (to 0.5.5.post2), from probabilities inside
    ``forward`` (0.5.5.post3 .. 0.5.8.post1) or from logits (0.5.9 ..)."""
    if view.has(FORWARD_ASCEND, "function") or view.has(SAMPLE_ASCEND, "function"):
        return "logits"
    return "probabilities" if view.has(SAMPLE_ASCEND_PROBS, "function") else "none"


def backends_sampled(view: View) -> Site:
    """Find the function that draws tokens by sampling backend and knows no "ascend".

    This is the positive evidence that a tree has no Ascend path to patch.
    """
    for path in view.overlay.mentioning(DRAW):
        source = view.source(path)
        for block in source.blocks:
            text = source.cut(block) if block.kind == "function" else ""
            known = {
                name
                for name in ("flashinfer", "pytorch", ASCEND)
                if f'"{name}"' in text or f"'{name}'" in text
            }
            if known == {"flashinfer", "pytorch"}:
                return Site(path, block.line, block.qualname)
    raise AnchorError(
        sought="the sampler's choice between sampling backends",
        expected='one function that compares with "flashinfer" and "pytorch", or an Ascend path',
        found="neither",
        action="see where sampling moved upstream and adapt codemods/_places.py",
    )


def takes_probabilities(spot: Spot) -> bool:
    """Tell whether ``multinomial_with_seed`` takes the log itself, from its own body.

    Raises:
        AnchorError: the body neither takes the log of its first parameter nor adds it as it is.
    """
    parameters = nodes.parameters(spot.function)
    first = parameters[0].name.value if parameters else ""
    logs = [*nodes.calls(spot.node, "log"), *nodes.calls(spot.node, "log_")]
    if any(_uses(call, first) for call in logs):
        return True
    added = [
        *(arg.value for call in nodes.calls(spot.node, "add_") for arg in call.args),
        *(
            side
            for operation in nodes.find_all(spot.node, cst.BinaryOperation)
            if isinstance(operation.operator, cst.Add)
            for side in (operation.left, operation.right)
        ),
    ]
    bound = {
        nodes.dotted(target.target)
        for statement in nodes.find_all(spot.node, cst.Assign)
        for target in statement.targets
    }
    if first not in bound and any(_retyped(value) == first for value in added):
        return False
    raise AnchorError(
        sought=f"what {DRAW} takes",
        expected=f"a body that takes the log of {first or 'its first parameter'} or adds it",
        found="neither, so whether it takes probabilities or logarithms cannot be told",
        where=(spot.site,),
        action="pass what the function expects by hand, or restore upstream's body",
    )


def _uses(node: cst.CSTNode, name: str) -> bool:
    return any(found.value == name for found in nodes.find_all(node, cst.Name))


def _retyped(node: cst.CSTNode) -> str:
    """Name what is taken as it is, or in another floating type."""
    while isinstance(node, cst.Call) and nodes.last_name(node.func) in ("to", "double", "float"):
        node = node.func.value if isinstance(node.func, cst.Attribute) else node.func
    return nodes.dotted(node)


def prefill_branch(view: View) -> Spot:
    """Find the ``if self.use_fia`` that runs prefill of models without MLA.

    The same test occurs again for context parallelism, for attention sinks (from 0.5.11 on) and
    for models with MLA; those are not it.
    """
    return view.find_statement(
        "forward_extend",
        _is_prefill_branch,
        holding="self.use_fia",
        sought="if self.use_fia of models without MLA in forward_extend",
    )


def _is_prefill_branch(node: ast.stmt, above: Sequence[tuple[ast.stmt, bool]]) -> bool:
    if not isinstance(node, ast.If) or ast.unparse(node.test) != "self.use_fia":
        return False
    mla = [False]
    for outer, inside in above:
        test = ast.unparse(outer.test) if isinstance(outer, ast.If) else ""
        if inside and ("is_cp_mode" in test or "sinks" in test):
            return False
        if test in ("self.use_mla", "not self.use_mla"):
            mla.append(inside != test.startswith("not"))
    return not mla[-1]


def ignores_prefix(view: View) -> Site | None:
    """Tell whether prefill attends to the new keys only, so that a cached prefix is ignored.

    Raises:
        AnchorError: the branch neither loops over the new tokens nor reads the paged cache.
    """
    spot = prefill_branch(view)
    assert isinstance(spot.node, cst.If)
    branch = spot.node.body
    fused = nodes.calls(branch, FUSED_ATTENTION)
    paged = [nodes.dotted(nodes.keyword(call, "block_table")) not in ("", "None") for call in fused]
    if paged and all(paged):
        return None
    loops = [
        loop
        for loop in nodes.find_all(branch, cst.For)
        if nodes.last_name(loop.iter).startswith("extend_seq_lens")
    ]
    if loops and paged and not any(paged):
        return spot.site
    raise AnchorError(
        sought="prefill attention in the use_fia branch",
        expected="a loop over the new tokens of each request, or calls with a block_table only",
        found="calls with and without a block_table" if any(paged) else "neither",
        where=(spot.site,),
        action="check by hand that prefill reads the cached prefix, then adapt codemods/_places.py",
    )


_UTILS = "srt/utils/common.py"


def import_is_npu(view: View, spot: Spot) -> str:
    """Give the line that imports ``is_npu`` inside a function, empty where its module has it.

    Raises:
        AnchorError: no utility module defines it.
    """
    own = view.source(spot.path)
    if own.binds("is_npu") and not own.named("is_npu", "assignment"):
        return ""
    if own.named("is_npu", "assignment"):
        raise AnchorError(
            sought="is_npu",
            expected="a function of that name, or no such name in the module",
            found="a variable",
            where=tuple(
                Site(own.path, block.line, "is_npu") for block in own.named("is_npu", "assignment")
            ),
            action="give the variable another name",
        )
    source = view.overlay.source(view.package / _UTILS)
    if source is not None and source.named("is_npu", "function"):
        line = "from sglang.srt.utils.common import is_npu\n\n"
        statement = nodes.block(line)[0]
        ours = any(nodes.alike(step.node, statement) for step in nodes.steps(spot.node))
        if not ours and any(n.value == "is_npu" for n in nodes.find_all(spot.node, cst.Name)):
            # An import inside the function would make the name local to all of it.
            raise AnchorError(
                sought=f"is_npu in {spot.path.name}",
                expected="an import or a definition of it, under no condition",
                found=f"a use in {spot.block.name} of a name that the module does not always have",
                where=(spot.site,),
                action="import is_npu at module level",
            )
        return line
    raise AnchorError(
        sought="is_npu",
        expected=f"a function in {_UTILS}",
        found="none",
        where=(spot.site,),
        action="see where it is defined now and adapt codemods/_places.py",
    )
