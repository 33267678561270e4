"""Set what deterministic inference on an NPU silently depends on.

Called while SGLang resolves its arguments, before worker processes start, so that they
inherit the environment. Imports nothing of torch_npu or of Ascend's extension unless
this torch_npu could capture graphs of the replaced operators at all.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

logger = logging.getLogger(__name__)

# Flags of the releases 0.5.3rc2 to 0.5.12.post1, each with the value that is safe.
_GRAPH_FLAGS = {
    "disable_cuda_graph": True,
    "enable_breakable_cuda_graph": False,
    "debug_cuda_graph": False,
}
_COMPILE_FLAGS = {
    "enable_torch_compile": False,
    "enable_piecewise_cuda_graph": False,
    "enforce_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": True,
}
_GRAPH_VARIABLES = ("SGLANG_VIT_ENABLE_CUDA_GRAPH", "SGLANG_USE_BREAKABLE_CUDA_GRAPH")
_COMPILE_VARIABLES = ("SGLANG_ENABLE_TORCH_COMPILE",)

_COLLECTIVES = {"HCCL_DETERMINISTIC": "strict", "LCCL_DETERMINISTIC": "1"}

_warned: set[str] = set()


def apply(server_args: Any) -> None:
    """Switch off or set what would break the promise, with one warning for each.

    ``server_args`` is SGLang's ServerArgs of any release; flags it lacks are skipped.
    """
    _switch_off(
        server_args,
        _COMPILE_FLAGS,
        _COMPILE_VARIABLES,
        "torch.compile and piecewise graphs trace past the operators that are replaced",
    )
    if not _graph_capture_supported():
        _switch_off(
            server_args,
            _GRAPH_FLAGS,
            _GRAPH_VARIABLES,
            "the installed torch_npu and batch_invariant_ops cannot renew the lengths "
            "of the replaced attention operator in a captured graph, and a replay with "
            "stale lengths gives wrong tokens",
        )
    for variable, value in _COLLECTIVES.items():
        os.environ.setdefault(variable, value)
    if not _is_true("ASCEND_USE_FIA"):
        _warn_once(
            "ASCEND_USE_FIA",
            "ASCEND_USE_FIA is unset or false: attention then runs operators that "
            "nothing makes batch-invariant, so that a request's output depends on the "
            "other requests of its batch. Set ASCEND_USE_FIA=1.",
        )
    if not _is_true("SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT", "yes", "y"):
        _warn_once(
            "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT",
            "Weights may be cast to FRACTAL_NZ, which the batch-invariant matrix "
            "products are not made for. Set SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT=1 "
            "(read from SGLang 0.5.6.post1 on; older releases cast the weights of "
            "quantised models in any case).",
        )


def _switch_off(
    server_args: Any, flags: dict[str, bool], variables: tuple[str, ...], reason: str
) -> None:
    changed = [
        name
        for name, safe in flags.items()
        if hasattr(server_args, name) and bool(getattr(server_args, name)) is not safe
    ]
    for name in changed:
        setattr(server_args, name, flags[name])
    # Some releases export the flags before they handle deterministic inference.
    exported = [name for name in variables if _is_true(name, "yes", "y")]
    for name in exported:
        os.environ[name] = "0"
    settings = [f"{name}={flags[name]}" for name in changed]
    settings += [f"{name}=0" for name in exported]
    if settings:
        _warn_once(
            reason,
            "Deterministic inference on the NPU sets "
            f"{', '.join(settings)}: {reason}.",
        )


def _graph_capture_supported() -> bool:
    """Return whether npu_ops will register a graph handler; False when in doubt."""
    torch_npu = sys.modules.get("torch_npu")
    if not hasattr(getattr(torch_npu, "npu", None), "register_npu_graph_handler"):
        return False
    try:
        npu_ops = importlib.import_module(f"{__package__}.npu_ops")
        return bool(npu_ops.graph_capture_supported())
    except Exception:
        logger.debug("Graph capture stays off: npu_ops gives no answer", exc_info=True)
        return False


def _is_true(variable: str, *more: str) -> bool:
    return os.environ.get(variable, "").lower() in ("true", "1", *more)


def _warn_once(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        logger.warning(message)
