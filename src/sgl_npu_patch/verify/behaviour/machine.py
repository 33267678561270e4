"""Set up a simulated machine on which a tree's batch-invariant mode is executed.

Every check gets a machine of its own, so that what a failing one leaves behind is never another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from sgl_npu_patch.codemods.upstream import modules, operators, symbols
from sgl_npu_patch.simulator import device, extension, torch_npu
from sgl_npu_patch.simulator.modules import modules_of
from sgl_npu_patch.simulator.sglang import Execution
from sgl_npu_patch.verify.behaviour import Subject
from sgl_npu_patch.verify.findings import NotApplicable

ATTENTION = operators.FUSED_ATTENTION
WORKSPACE = operators.MAX_WORKSPACE
ADD_RMS_NORM = operators.ADD_RMS_NORM
WORKSPACE_OF_EXTENSION = f"_{ATTENTION}_batch_invariant_get_max_workspace"

Installed = Literal["1.0.0", "2.0.0", "none", "another"]
"""A version of the extension, or the package that only shares its import name."""

OLD_TORCH_NPU = "2.8.0.post2"
"""One that offers no graph handlers, as goes with version 1.0.0 of the extension."""


@dataclass
class Machine:
    """Hold the executed module of the mode and what stands around it."""

    execution: Execution
    torch_npu: ModuleType
    registered: list[tuple[str, Any, str]] = field(default_factory=list)
    """What the tree registered with torch's dispatcher: operator, function, dispatch key."""

    @property
    def takes_bmm(self) -> bool:
        """Report whether the mode can be entered without bmm."""
        return takes_bmm(self.execution)

    @property
    def is_enabled(self) -> bool:
        """Report whether the tree says that the mode is on."""
        return bool(self.execution.value(modules.IS_ENABLED)())

    def namespaces(self) -> dict[str, Any]:
        """Return where operators are called as attributes."""
        return {"torch.ops.npu": torch.ops.npu, "torch_npu": self.torch_npu}

    def rebound(self) -> dict[str, object]:
        """Return the very objects that a caller of each attribute gets."""
        return {
            f"{name}.{operator}": getattr(namespace, operator)
            for name, namespace in self.namespaces().items()
            for operator in operators.REBOUND
        }

    def enable(self, **options: bool) -> None:
        """Enter the mode."""
        self.execution.value(symbols.ENABLE)(**options)

    def disable(self) -> None:
        """Leave the mode."""
        self.execution.value(symbols.DISABLE)()

    def scoped(self, *enabled: bool) -> Any:
        """Return a context in which the mode is on or off."""
        return self.execution.value(symbols.SCOPED)(*enabled)


def takes_bmm(execution: Execution) -> bool:
    """Report whether a tree's mode can be entered without bmm."""
    return "enable_bmm" in execution.value(symbols.ENABLE).__code__.co_varnames


def mode_modules(tree: Path) -> list[str]:
    """List the modules of a tree that its mode consists of."""
    return modules_of(tree, symbols.ENABLE, symbols.DISABLE, symbols.SCOPED, modules.IS_ENABLED)


@contextmanager
def machine(
    subject: Subject, installed: Installed = "2.0.0", version: str = ""
) -> Iterator[Machine]:
    """Give a machine with the mode off, and take everything down again.

    Args:
        version: of torch_npu, the subject's where it is empty.

    Raises:
        NotApplicable: nothing can be entered without the extension, since its import fails before.
    """
    device.install()
    # Starting threads costs more than these tensors do.
    torch.set_num_threads(1)
    version = version or subject.torch_npu
    fake = torch_npu.install(version)
    submodule = ModuleType("torch_npu.npu")
    submodule.__dict__.update(vars(fake.npu))
    provide: dict[str, Any] = {"torch_npu": fake, "torch_npu.npu": submodule}
    if installed == "another":
        provide["batch_invariant_ops"] = ModuleType("batch_invariant_ops")
    elif installed != "none":
        # The limits of the real kernels are in part assumed, which no native release may fail for.
        stand_in = extension.install(installed, version, narrow=not subject.native)
        provide["batch_invariant_ops"] = stand_in
    bmm = torch.bmm
    registered: list[tuple[str, Any, str]] = []
    try:
        real = mode_modules(subject.package)
        with Execution(subject.package, "npu", provide, real) as execution, _watched(registered):
            try:
                execution.defining(symbols.ENABLE)
            except ImportError as error:
                if installed in ("none", "another"):
                    what = f"the mode's module itself imports the extension: {error}"
                    raise NotApplicable(what) from error
                raise
            yield Machine(execution, fake, registered)
    finally:
        vars(torch)["bmm"] = bmm
        extension.uninstall()
        torch_npu.uninstall()


@contextmanager
def enabled(subject: Subject) -> Iterator[Machine]:
    """Give a machine with the mode on."""
    with machine(subject) as on:
        on.enable()
        yield on


@contextmanager
def _watched(registered: list[tuple[str, Any, str]]) -> Iterator[None]:
    """Write down what is registered under aten, and destroy at the end what still holds it."""
    libraries: list[Any] = []
    library: Any = torch.library.Library
    original = library.impl

    def impl(self: Any, name: Any, function: Any, key: str = "", **options: Any) -> Any:
        libraries.append(self)
        registered.append((str(name), function, key))
        return original(self, name, function, key, **options)

    library.impl = impl
    try:
        yield
    finally:
        library.impl = original
        for each in libraries:
            each._destroy()


def error_of(call: Callable[[], Any]) -> Exception | None:
    """Return the error that a call ends in, if any."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def require_ours(subject: Subject) -> None:
    """Leave a check out where upstream's module is in the place of npu_ops."""
    if subject.native:
        raise NotApplicable("it is npu_ops that knows the extension's versions and their absence")
