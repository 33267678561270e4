"""Check that no module keeps an operator that the mode rebinds: it would keep the native one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.operators import REBOUND
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.verify.findings import Finding, NotApplicable
from sgl_npu_patch.verify.static.judged import FunctionNode, Judged, check_of


@check_of("batch_invariant")
def operators_by_attribute(judged: Judged, seam: str) -> Iterator[Finding]:
    """No module takes an operator that the mode rebinds by value."""
    del seam  # The operators are those of one seam.
    for path in sorted({path for name in REBOUND for path in judged.overlay.mentioning(name)}):
        if path.name in ("npu_ops.py", f"{symbols.UPSTREAM_OPS}.py"):
            # The modules that rebind them must hold on to what was there.
            continue
        try:
            module = judged.module(path)
        except NotApplicable as reason:
            yield Finding(Site(path, 0, ""), "a file that can be read", str(reason), "newer Python")
            continue
        for node in _when_imported(module.body):
            name = _taken(node)
            if name:
                yield Finding(
                    Site(path, getattr(node, "lineno", 0), name),
                    f"{name} looked up as an attribute at each call",
                    "it is taken once, when the module is imported, before the mode rebinds it",
                    f"import torch_npu and call torch_npu.{name}",
                    ast.unparse(node)[:200],
                )


def _when_imported(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that are evaluated when a module is imported."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, FunctionNode | ast.Lambda):
            waiting += (d for d in [*node.args.defaults, *node.args.kw_defaults] if d is not None)
            waiting += getattr(node, "decorator_list", [])
            continue
        yield node
        if isinstance(node, ast.Call) and not _is_getattr(node):
            # A call at import is made once, of whatever is there then; its arguments stay.
            waiting += [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            waiting += ast.iter_child_nodes(node)


def _taken(node: ast.AST) -> str:
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch_npu":
        return next((alias.name for alias in node.names if alias.name in REBOUND), "")
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr if node.attr in REBOUND else ""
    if isinstance(node, ast.Call) and _is_getattr(node):
        return next(
            (str(a.value) for a in node.args if isinstance(a, ast.Constant) and a.value in REBOUND),
            "",
        )
    return ""


def _is_getattr(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "getattr"
