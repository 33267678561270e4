"""Run a program on a simulated machine: ``python machine.py JSON PROGRAM ARGUMENT...``.

What the machine is like is JSON, so that a test can have it in another process: registrations with
torch's dispatcher are global, and torch cannot be imported away.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

EXTENSION = "batch_invariant_ops"

_kept: list[Any] = []


class _Absent:
    """Keep modules from being found, as if they or a library of theirs were not installed."""

    def __init__(self, names: list[str], broken: list[str]) -> None:
        self._names = names
        self._broken = broken

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in self._broken:
            raise ImportError("libhccl.so: cannot open shared object file: No such file")


def main() -> None:
    """Set the machine up and run the program on it."""
    warnings.simplefilter("ignore")
    # A process that was started in the background ignores it, and so do those that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    machine: dict[str, Any] = json.loads(sys.argv[1])
    for name, value in machine.get("environment", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.meta_path.insert(0, _Absent(machine.get("absent", []), machine.get("broken", [])))
    if "torch" not in machine.get("absent", []):
        _install(machine)
    program = [each for each in sys.argv[2:] if each != "-B"]
    sys.argv[:] = program
    sys.path[0] = os.path.dirname(os.path.abspath(program[0]))  # noqa: PTH100, PTH120
    runpy.run_path(program[0], run_name="__main__")


def _install(machine: dict[str, Any]) -> None:
    import torch

    from sgl_npu_patch.simulator import device, extension, torch_npu

    torch.set_num_threads(1)
    device.install()
    version = machine.get("torch_npu", "2.10.0")
    norm = torch_npu.NATIVE_KERNELS["npu_rms_norm"]
    if "npu_rms_norm" in machine.get("batch_dependent", []):
        norm = _batch_dependent(norm)
    if "torch_npu" not in machine.get("absent", []) + machine.get("broken", []):
        torch_npu.install(version, npu_rms_norm=norm)
    if not machine.get("device", True):
        vars(torch)["npu"].is_available = lambda: False
    if machine.get("own_linear"):
        _register_linear()
    if "unsupported" in machine:
        _refuse(getattr(torch, machine["unsupported"]))
    offered = machine.get("extension", "2.0.0")
    if offered in ("1.0.0", "2.0.0"):
        _spoil(extension, machine)
        extension.install(offered, version)
    elif offered == "another":
        sys.modules[EXTENSION] = ModuleType(EXTENSION)
        vars(sys.modules[EXTENSION])["set_batch_invariant_mode"] = print


def _register_linear() -> None:
    """Give the device a linear layer that calls none of the products, and sees its batch."""
    import torch

    from sgl_npu_patch.simulator.device import cpu, in_last_bits, npu

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        on_host = None if bias is None else cpu(bias)
        result = torch.nn.functional.linear(cpu(x), cpu(weight), on_host)
        return npu(in_last_bits(result, x.shape[0]))

    new_library: Callable[[str, str], Any] = torch.library.Library
    _kept.append(new_library("aten", "IMPL"))
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        _kept[-1].impl("linear", linear, key)


def _refuse(dtype: Any) -> None:
    """Let the device have no kernel that gives a type, as where it does not support one."""
    from sgl_npu_patch.simulator import device

    made = device.npu

    def npu(tensor: Any) -> Any:
        if tensor.dtype == dtype:
            raise RuntimeError(f"{dtype} is not supported")
        return made(tensor)

    vars(device)["npu"] = npu


def _spoil(extension: ModuleType, machine: dict[str, Any]) -> None:
    """Offer the operators as the machine has them: one missing, of another schema, or wrong."""
    offered = extension._operators

    def operators(version: str, native: dict[str, str]) -> dict[str, tuple[str, Any]]:
        found: dict[str, tuple[str, Any]] = offered(version, native)
        for name in machine.get("missing", []):
            del found[name]
        for name, (old, new) in machine.get("schemas", {}).items():
            schema, kernel = found[name]
            assert old in schema
            found[name] = schema.replace(old, new), kernel
        for name in {*machine.get("batch_dependent", [])} & {*found}:
            schema, kernel = found[name]
            found[name] = schema, _batch_dependent(kernel)
        for name in machine.get("last_row_differs", []):
            schema, kernel = found[name]
            found[name] = schema, _last_row_differs(kernel)
        for name in machine.get("failing", []):
            found[name] = found[name][0], _failing
        return found

    vars(extension)["_operators"] = operators


def _batch_dependent(kernel: Callable[..., Any]) -> Callable[..., Any]:
    from sgl_npu_patch.simulator.device import cpu, in_last_bits, npu

    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        first, *others = result if isinstance(result, tuple) else (result,)
        moved = npu(in_last_bits(cpu(first), first.shape[0]))
        return (moved, *others) if isinstance(result, tuple) else moved

    return run


def _last_row_differs(kernel: Callable[..., Any]) -> Callable[..., Any]:
    from sgl_npu_patch.simulator.device import cpu, in_last_bits

    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        if len(result) > 1:
            last = cpu(result)[-1:]
            last.copy_(in_last_bits(last, 2))
        return result

    return run


def _failing(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("the kernel failed, see /home/someone/ascend/log")


if __name__ == "__main__":
    main()
