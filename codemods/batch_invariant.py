"""Make batch-invariant mode replace the NPU's operators, and restore them when it is left.

**Why**: `enable_batch_invariant_mode` registers Triton kernels for CUDA only. On an NPU the results
of linear layers, means, sums, softmax, attention and the fused norm would depend on the batch.
Upstream's own branch for the NPU leaves some of these as they are, and never restores operators.

**Where**: `enable_`, `disable_` and `set_batch_invariant_mode` in
`srt/batch_invariant_ops/batch_invariant_ops.py`: on an NPU each calls npu_ops and returns, before
upstream's own branch if there is one. Nothing of that branch is rewritten.

**Upstream**: pull request 21197 (0.5.13) imports `npu_batch_invariant_ops`, with gaps.
Nothing closes `fused_attention_v2_not_replaced`.

**Ends when**: upstream's own branch has none of the other gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from sgl_npu_patch.codemods.upstream import devices, mode, symbols
from sgl_npu_patch.codemods.upstream import gaps as known
from sgl_npu_patch.codemods.upstream.advice import as_released
from sgl_npu_patch.codemods.upstream.operators import (
    FUSED_ATTENTION,
    FUSED_ATTENTION_V2,
    NAMESPACES,
    REBOUND,
    REGISTERED,
)
from sgl_npu_patch.codemods.upstream.symbols import DISABLE, DISPATCH, ENABLE, SCOPED
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.cst.pattern import Found, find
from sgl_npu_patch.engine.cst.read import Step
from sgl_npu_patch.engine.errors import AnchorError, Located
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.excerpt import excerpt
from sgl_npu_patch.engine.view import View
from sgl_npu_patch.templates import render

_UNREGISTERED = {
    "aten::addmm": known.ADDMM_NOT_REGISTERED,
    "aten::bmm": known.BMM_NOT_REGISTERED,
    "aten::mean": known.MEAN_OF_ALL_NOT_REPLACED,
}


def targets(view: View) -> Sequence[Target]:
    """Find the three functions that change the mode."""
    native = mode.native_branch(view) is not None
    enable, disable, scoped = (symbol.find(view) for symbol in (ENABLE, DISABLE, SCOPED))
    for other in (disable, scoped):
        if other.path != enable.path:
            raise AnchorError(
                sought=other.block.name,
                expected=f"a function beside {ENABLE}, whose flag it shares",
                found="one in another module",
                where=(other.site, enable.site),
                action=f"move it beside {enable.block.name}",
            )
    with Located(enable.site):
        (_, flag), bmm = mode_flag(enable.function), takes_bmm(enable.function)
    imports = [devices.import_is_npu(view, spot) for spot in (enable, disable, scoped)]
    return (
        Target(enable, lambda node: enter(_function(node), imports[0], native=native)),
        Target(disable, lambda node: leave(_function(node), imports[1], flag)),
        Target(
            scoped,
            lambda node: scope(
                _function(node), imports[2], flag, enable.block.name, disable.block.name, bmm=bmm
            ),
        ),
    )


def _function(node: cst.CSTNode) -> cst.FunctionDef:
    assert isinstance(node, cst.FunctionDef)
    return node


def enter(node: cst.FunctionDef, imports: str, *, native: bool) -> cst.FunctionDef:
    """Hand over to npu_ops behind the check of the flag, before anything is registered.

    Args:
        native: upstream's own branch for the NPU follows, which is then not reached any more.
    """
    flag, mode = mode_flag(node)
    made, found = read.only(
        _directly(("$library = $_.Library(...)", "$library = Library(...)"), node),
        lambda count: AnchorError(
            sought=f"the torch.library.Library of {ENABLE}",
            expected="one assignment, directly in the function",
            found=str(count),
            action=as_released(node.name.value),
        ),
    )
    library = read.dotted(found["library"])
    keys = _directly([f"$key = {name}(...)" for name in DISPATCH.names], node)
    anchor = keys[0][0] if keys else flag
    if not flag.index <= anchor.index < made.index:
        raise AnchorError(
            sought=f"the order of {ENABLE}",
            expected="the flag's check, then the dispatch key, then the library",
            found="another order",
            action=as_released(node.name.value),
        )
    shared = {
        name.name.value for statement in read.find_all(node, cst.Global) for name in statement.names
    }
    if not {library, mode} <= shared:
        raise AnchorError(
            sought=f"the global statement of {ENABLE}",
            expected="one that names the library and the flag",
            found=", ".join(sorted(shared)) or "none",
            action="declare both global there, and set them in the function itself",
        )
    arguments = [read.dotted(keys[0][1]["key"]) if keys else '"NPU"']
    if takes_bmm(node):
        arguments.append("enable_bmm")
    text = render("enable", library=library, mode=mode, arguments=", ".join(arguments))
    edited = edit.place(node, anchor, imports + text, mark=symbols.OURS, after=True, blank=True)
    if edited is not node and native:
        require_replaced(node, anchor)
    elif edited is not node:
        untouched(node)
    return edited


def leave(node: cst.FunctionDef, imports: str, mode: str) -> cst.FunctionDef:
    """Take the rebindings back before the library is destroyed."""
    return _at_start(node, imports + render("disable", mode=mode))


def scope(
    node: cst.FunctionDef, imports: str, mode: str, enable: str, disable: str, *, bmm: bool
) -> cst.FunctionDef:
    """Enter and leave on an NPU by the two functions above, also when an exception passes."""
    first = [p.name.value for p in read.parameters(node)][:1]
    names = [*first, *(name for name in _parameters(node) if name not in first)]
    yields = [
        found
        for statement in node.body.body
        if not any(name.value == symbols.OURS for name in read.find_all(statement, cst.Name))
        for found in read.find_all(statement, cst.Yield)
    ]
    managed = any(read.last_name(d.decorator) == "contextmanager" for d in node.decorators)
    bare = len(yields) == 1 and yields[0].value is None and managed
    if len(names) != 1 or not bare:
        raise AnchorError(
            sought=str(SCOPED),
            expected="a context manager with one parameter and one yield of nothing",
            found=excerpt(read.code(node)),
            action=as_released(node.name.value),
        )
    text = render(
        "scoped_mode",
        mode=mode,
        enabled=names[0],
        enable=enable,
        disable=disable,
        arguments="enable_bmm=was_bmm" if bmm else "",
    )
    return _at_start(node, imports + text)


def mode_flag(enable: cst.FunctionDef) -> tuple[Step, str]:
    """Find the check that makes a second call return at once, and return its flag's name."""
    checks = _directly(("if $flag:\n    return\n",), enable)
    step, found = read.only(
        [(step, found) for step, found in checks if isinstance(found["flag"], cst.Name)],
        lambda count: AnchorError(
            sought=f"the flag of {ENABLE}",
            expected="one `if FLAG: return`, directly in the function",
            found=str(count),
            action="check one flag alone, and return on a line of its own",
        ),
    )
    return step, read.dotted(found["flag"])


def takes_bmm(enable: cst.FunctionDef) -> bool:
    """Report whether the function has the parameter that 0.5.4.post1 added.

    Raises:
        AnchorError: it has others, which npu_ops does not know.
    """
    names = _parameters(enable)
    if names not in ([], ["enable_bmm"]):
        raise AnchorError(
            sought=f"the parameters of {ENABLE}",
            expected="none, or enable_bmm",
            found=", ".join(names),
            action=as_released("the parameters"),
        )
    return bool(names)


def _parameters(function: cst.FunctionDef) -> list[str]:
    """List the parameters that mean something: those that are used or must be given."""
    used = {name.value for name in read.find_all(function.body, cst.Name)}
    used |= {read.last_name(call.func) for call in read.find_all(function.body, cst.Call)}
    hidden = used & {"locals", "vars", "eval", "exec"}
    return [
        p.name.value
        for p in read.find_all(function.params, cst.Param)
        if p.default is None or p.name.value in used or p.name.value == "enable_bmm" or hidden
    ]


def _directly(patterns: Sequence[str], node: cst.FunctionDef) -> list[tuple[Step, Found]]:
    """List the statements of the function itself that fit one of some patterns."""
    return [(step, found) for step, found in find(patterns, node) if len(step.above) == 1]


def _at_start(node: cst.FunctionDef, text: str) -> cst.FunctionDef:
    globals_ = [
        step
        for step in read.steps(node)
        if len(step.above) == 1 and read.small(step.node, cst.Global) is not None
    ]
    last = read.only(
        globals_,
        lambda count: AnchorError(
            sought=f"the global statement of {node.name.value}",
            expected="exactly one",
            found=str(count),
            action="declare what the function sets in one global statement",
        ),
    )
    edited = edit.place(node, last, text, mark=symbols.OURS, after=True)
    if edited is not node:
        untouched(node)
    return edited


def untouched(node: cst.FunctionDef) -> None:
    """Insist that a function did nothing for an NPU before; ours would put it out of force."""
    for step in read.steps(node):
        # Of a compound statement the head is looked at: what it holds has steps of its own.
        head = step.node.test if isinstance(step.node, cst.If) else step.node
        if isinstance(head, cst.SimpleStatementLine | cst.BaseExpression) and on_npu(head):
            raise AnchorError(
                sought=f"what {node.name.value} does on an NPU",
                expected="nothing yet, or what this tool or upstream writes",
                found=excerpt(read.code(head)),
                action="take the branch for the NPU out, and apply again",
            )


def on_npu(node: cst.CSTNode) -> bool:
    """Report whether anything in a node names the NPU."""
    names = any(
        "npu" in name.value.lower() or name.value == "batch_invariant_ops"
        for name in read.find_all(node, cst.Name)
    )
    return names or any(
        (read.string(text) or "").upper() in ("NPU", "PRIVATEUSE1")
        for text in read.find_all(node, cst.SimpleString)
    )


def left_open(view: View) -> tuple[str, ...]:
    """Name what no form can close: the second version of fused attention has no counterpart."""
    backends = view.overlay.mentioning(symbols.FORWARD_EXTEND)
    calls = view.overlay.tree.containing(FUSED_ATTENTION_V2.encode(), backends)
    return (known.FUSED_ATTENTION_V2.name,) if calls else ()


def gaps(view: View) -> tuple[str, ...]:
    """Name what upstream's branch leaves open; see seams.md for each."""
    enable = ENABLE.find(view)
    rebound = {*map(read.dotted, read.targets(enable.node))}
    found = []
    if f"torch_npu.{FUSED_ATTENTION}" not in rebound:
        found.append(known.ALIAS_NOT_REBOUND.name)
    if not any(name.endswith("_get_max_workspace") for name in rebound):
        found.append(known.WORKSPACE_NOT_REBOUND.name)
    if not any(name.endswith(FUSED_ATTENTION_V2) for name in rebound):
        found += left_open(view)
    disable = DISABLE.find(view)
    if not any("npu" in read.dotted(target) for target in read.targets(disable.node)):
        found.append(known.REBINDING_NOT_UNDONE.name)
    npu = [
        read.string(call.args[0].value)
        for call in read.calls(enable.node, "impl")
        if read.last_name(call.args[1].value).startswith("npu_")
    ]
    for name, gap in _UNREGISTERED.items():
        if name not in npu:
            found.append(gap.name)
    if not list(read.find_all(SCOPED.find(view).node, cst.Finally)):
        found.append(known.SCOPED_MODE_NOT_RESTORED.name)
    if _flagged_first(enable.node):
        found.append(known.EXTENSION_NOT_CHECKED.name)
    return tuple(found)


def _flagged_first(enable: cst.CSTNode) -> bool:
    """Report whether the flag is set before what fails without the extension, and so stays set."""
    for step in read.steps(enable):
        pair = read.assigned(step.node)
        if pair is not None and read.dotted(pair[1]) == "True":
            return True
        if isinstance(step.node, cst.SimpleStatementLine) and read.calls(step.node, "impl"):
            return False
    return False


def require_replaced(enable: cst.FunctionDef, anchor: Step) -> None:
    """Insist that npu_ops does all that the branch does which it puts out of force."""
    for step in _for_npu(enable):
        top = step.node if len(step.above) == 1 else step.above[1][0]
        if any(top is statement for statement in anchor.block[: anchor.index + 1]):
            raise AnchorError(
                sought=f"upstream's branch for the NPU in {enable.name.value}",
                expected="one behind the flag's check and the dispatch key",
                found=f"before them: {excerpt(read.code(step.node))}",
                action="take the branch out, or pass --skip batch_invariant",
            )
        if not _only_replaces(step.node):
            raise AnchorError(
                sought=f"upstream's branch for the NPU in {enable.name.value}",
                expected="imports, and replacements of operators that npu_ops replaces too",
                found=excerpt(read.code(step.node)),
                action="take this statement out of the branch, or pass --skip batch_invariant",
            )


def _for_npu(enable: cst.FunctionDef) -> Iterator[Step]:
    """Yield the statements that name the NPU, or that a test for one leads to."""
    for step in read.steps(enable):
        branched = any(
            isinstance(outer, cst.If) and inside in _on_npu_side(outer.test)
            for outer, inside in step.above
        )
        # What an `if` holds has steps of its own.
        if not isinstance(step.node, cst.If) and (branched or on_npu(step.node)):
            yield step


def _on_npu_side(test: cst.BaseExpression) -> tuple[bool, ...]:
    """Return which blocks of an ``if`` run on an NPU, its body or what follows ``else``."""
    if not on_npu(test):
        return ()
    negated = isinstance(test, cst.UnaryOperation)
    plain = test.expression if isinstance(test, cst.UnaryOperation) else test
    return (not negated,) if isinstance(plain, cst.Name | cst.Call) else (True, False)


def _only_replaces(node: cst.CSTNode) -> bool:
    """Report whether a statement only imports, returns, or replaces what npu_ops replaces."""
    returned = read.small(node, cst.Return)
    if returned is not None:
        return returned.value is None
    if read.small(node, cst.ImportFrom) or read.small(node, cst.Import):
        return True
    call = read.statement_call(node)
    if call is not None and read.last_name(call.func) == "impl" and call.args:
        operator = read.string(call.args[0].value) or ""
        return operator.removeprefix("aten::") in REGISTERED
    pair = read.assigned(node)
    owner, _, name = pair[0].rpartition(".") if pair is not None else ("", "", "")
    return owner in NAMESPACES and name in REBOUND


SEAM = Seam(
    targets=targets,
    gaps=gaps,
    left_open=left_open,
    needs=("npu_ops",),
    needs_if_defined=("device_dispatch",),
)
