"""Put the simulated NPU into a process, in place of Ascend's packages.

The modules in `packages/` carry the names of these packages and call the functions below when they
are imported. `environment` makes Python find them: in every process that inherits it, torch imports
torch_npu by its entry point in the group `torch.backends`, as it does the real one.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from sgl_npu_patch.simulator import (
    acl,
    dense,
    device,
    experts,
    extension,
    latent,
    runtime,
    schemas,
    sgl_kernel_npu,
    torch_npu,
    torchair,
    uncovered,
    unsimulated,
)
from sgl_npu_patch.simulator.environment import ADVERSARIAL, OF_ATTENTION

_MODULES = (
    "torch_npu._C",
    "torch_npu._C._distributed_c10d",
    "torch_npu.contrib",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.multiprocessing",
    "torch_npu.multiprocessing.reductions",
    "torch_npu.profiler",
)
"""What of torch_npu can be imported beside its operators and `torch_npu.npu`."""

_ABSENT = ("soundfile", "torchaudio", "torchvision")
"""Packages that SGLang imports for images and sounds, and that exist for one build of torch each;
where they are not installed, an import of them is not yet an error."""


def install_torch_npu(spec: ModuleSpec | None) -> None:
    """Register the device with all of its operators, and put torch_npu into `sys.modules`."""
    device.install(runtime.Runtime())
    kernels = {**torch_npu.LAYER_KERNELS, **dense.KERNELS, **experts.KERNELS, **latent.KERNELS}
    module: Any = torch_npu.install(schemas.DEFAULT, **kernels)
    module.__spec__ = spec
    module.__getattr__ = _operator
    module._autoload = lambda: None
    module._apply_patches = _apply_patches
    _add_runtime(module.npu)
    hccl = SimpleNamespace(Options=type("Options", (), {}))
    parts: unsimulated.Parts = {
        "torch_npu._C": {"_weak_ref_tensor": lambda tensor: tensor},
        "torch_npu.contrib": {"__getattr__": _contrib},
        "torch_npu._C._distributed_c10d": {"ProcessGroupHCCL": hccl},
    }
    loaded = {"torch_npu.contrib.transfer_to_npu": runtime.transfer_to_npu}
    finder = unsimulated.Finder("torch_npu", parts, _MODULES.__contains__, loaded)
    unsimulated.install(finder, module)
    for name in _MODULES:
        if name not in loaded:
            import_module(name)
    for name in _ABSENT:
        unsimulated.install(unsimulated.Finder(name, {}))
    dist.Backend.register_backend("hccl", _gloo, devices=[device.NPU])
    _let_streams_be_recorded()
    _let_triton_see_memory()
    if os.environ.get(ADVERSARIAL) != "0":
        device.be_adversarial()
    if os.environ.get(ADVERSARIAL) == OF_ATTENTION:
        uncovered.cut_attention()


def install_extension(spec: ModuleSpec | None) -> None:
    """Register Ascend's extension, and put batch_invariant_ops into `sys.modules`."""
    extension.install().__spec__ = spec


def install_sgl_kernel_npu() -> None:
    """Let every module of sgl_kernel_npu be imported."""
    sgl_kernel_npu.install_operators()
    _install_parts(sgl_kernel_npu.PACKAGE, sgl_kernel_npu.PARTS)


def install_torchair() -> None:
    """Let every module of torchair be imported."""
    _install_parts(torchair.PACKAGE, torchair.PARTS)


def install_acl() -> None:
    """Let every part of acl be named."""
    _install_parts(acl.PACKAGE, acl.PARTS)


def _install_parts(package: str, parts: unsimulated.Parts) -> None:
    module = sys.modules[package]
    module.__class__ = unsimulated.Module
    module.__dict__.update(parts.get(package, {}))
    unsimulated.install(unsimulated.Finder(package, parts), module)


def _operator(name: str) -> unsimulated.Unsimulated:
    """Return an operator that the real torch_npu has and the simulator does not."""
    if name not in schemas.operators(schemas.DEFAULT):
        raise AttributeError(f"torch_npu.{name} is not simulated", name=name)
    return unsimulated.Unsimulated(f"torch_npu.{name}")


def _contrib(name: str) -> ModuleType:
    """Import `transfer_to_npu`, which does what it does by being imported."""
    if name != "transfer_to_npu":
        raise AttributeError(name)
    return import_module(f"torch_npu.contrib.{name}")


def _add_runtime(module: ModuleType) -> None:
    """Let `torch_npu.npu` have what `torch.npu` has, and the other way round."""
    npu: Any = torch.get_device_module(device.NPU)
    for name, value in vars(module).items():
        if not name.startswith("_"):
            setattr(npu, name, value)
    vars(module)["__getattr__"] = lambda name: getattr(npu, name)
    sys.modules[module.__name__] = module


def _apply_patches(patches: list[tuple[str, object]]) -> None:
    """Set attributes of torch by their dotted paths, as torch_npu's function of this name."""
    for path, value in patches:
        owner: Any = torch
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)


def _gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _let_streams_be_recorded() -> None:
    """Let `Tensor.record_stream` take the one stream, whose tensors are never freed too early."""
    native: Any = torch.Tensor.record_stream

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device.type != device.NPU:
            native(tensor, stream)
        elif not isinstance(stream, runtime.DeviceStream):
            raise TypeError(f"record_stream takes a stream of the device, not {stream!r}")

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign,assignment]


def _let_triton_see_memory() -> None:
    """Let Triton's interpreter work on the memory behind npu tensors, which it cannot copy."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        return
    interpreter: Any = import_module("triton.runtime.interpreter")

    def memory(value: Any) -> Any:
        is_npu = isinstance(value, torch.Tensor) and value.device.type == device.NPU
        return device.cpu(value) if is_npu else value

    def take(grid: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        device.tell(f"triton::{grid.fn.__name__}", tuple(args), kwargs, None)
        return [*map(memory, args)], {name: memory(value) for name, value in kwargs.items()}

    interpreter.GridExecutor._init_args_hst = take
    jit: Any = import_module("triton.runtime.jit")

    class Kernel(interpreter.InterpretedFunction):  # type: ignore[misc]
        # What asks whether something is a kernel, such as SGLang 0.5.3, means these too.
        __class__ = property(lambda kernel: jit.JITFunction)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run a function of a kernel, for whose launch the language is patched already."""
            return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction = Kernel
    interpreter.GridExecutor._restore_args_dev = lambda *args: None
