"""Find what tells the device; nothing here edits."""

from __future__ import annotations

from pathlib import PurePosixPath

import libcst as cst

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.codemods.upstream.symbols import IS_NPU
from sgl_npu_patch.engine.cst import read
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.view import Spot, View

_UTILITIES = "srt/utils"
"""One module in some trees, a package in others; both re-export the function."""


def require_is_npu(view: View, spot: Spot) -> None:
    """Insist that a function's module always has ``is_npu``, and that it is no variable."""
    source = view.source(spot.path)
    variables = source.named(IS_NPU.name, "assignment")
    if variables or not source.binds(IS_NPU.name):
        raise AnchorError(
            sought=f"{IS_NPU} in {spot.path.name}",
            expected="an import or a definition of the function, under no condition",
            found="a variable of that name" if variables else "none",
            where=(*(Site(source.path, b.line, b.name) for b in variables), spot.site),
            action=f"import {IS_NPU} at module level"
            + (", and give the variable another name" if variables else ""),
        )


def import_is_npu(view: View, spot: Spot) -> str:
    """Return the line that imports ``is_npu`` inside a function, empty where its module has it.

    Where a patched function has the line, it stays, although its module imports the name by now.

    Raises:
        AnchorError: no utility module defines it, or the name means something else here.
    """
    own = view.source(spot.path)
    there, following = _imported_module(view, spot)
    if own.binds(IS_NPU.name):
        require_is_npu(view, spot)
        ours = {name.value for name in read.find_all(following, cst.Name)} & {*PROJECT.vendored}
        return f"from {there} import {IS_NPU}\n\n" if ours else ""
    if own.named(IS_NPU.name, "assignment"):
        require_is_npu(view, spot)
    used = any(name.value == IS_NPU.name for name in read.find_all(spot.node, cst.Name))
    if used and not there:
        # An import inside the function would make the name local to all of it.
        raise AnchorError(
            sought=f"{IS_NPU} in {spot.path.name}",
            expected="an import or a definition of it, under no condition",
            found=f"a use in {spot.block.name} of a name that the module does not always have",
            where=(spot.site,),
            action=f"import {IS_NPU} at module level",
        )
    return f"from {there or _defining_module(view, spot)} import {IS_NPU}\n\n"


def _imported_module(view: View, spot: Spot) -> tuple[str, cst.CSTNode]:
    """Return the module that the function itself imports it from, and the statement after that.

    The name is dotted, and empty where it imports it from none.
    """
    for step in read.steps(spot.node):
        statement = read.small(step.node, cst.ImportFrom)
        if statement is None or isinstance(statement.names, cst.ImportStar):
            continue
        module = read.dotted(statement.module)
        stem = view.package.joinpath(*module.split(".")[1:])
        files = (stem.with_suffix(".py"), stem / "__init__.py")
        if [read.dotted(alias.name) for alias in statement.names] == [IS_NPU.name] and any(
            view.overlay.read(path) is not None for path in files
        ):
            return module, step.next or step.node
    return "", cst.Module([])


def _defining_module(view: View, spot: Spot) -> str:
    """Return the dotted name of the utility module that defines ``is_npu``."""
    usual = [view.package / form.file for form in reversed(IS_NPU.forms)]
    others = view.overlay.mentioning(f"def {IS_NPU.name}")
    for path in (*usual, *(path for path in others if _is_utility(path, view.package))):
        source = view.overlay.source(path)
        if source is not None and any(
            "." not in block.qualname and not block.guards
            for block in source.named(IS_NPU.name, "function")
        ):
            parts = path.relative_to(view.package).with_suffix("").parts
            return ".".join(("sglang", *parts[: -1 if parts[-1] == "__init__" else None]))
    raise AnchorError(
        sought=str(IS_NPU),
        expected=f"a function in {_UTILITIES}.py or a module of {_UTILITIES}",
        found="none",
        where=(*(Site(path, 0, IS_NPU.name) for path in others), spot.site),
        action=f"import {IS_NPU} at the top of {spot.path.name} from the module that has it",
    )


def _is_utility(path: PurePosixPath, package: PurePosixPath) -> bool:
    utilities = package / _UTILITIES
    return path == utilities.with_suffix(".py") or utilities in path.parents
