"""Set up a simulated machine on which a tree's batch-invariant mode is executed.

Every check gets a machine of its own, so that what a failing one leaves behind is never another's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch

from sgl_npu_patch.simulator import device, extension, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.sglang import Execution
from sgl_npu_patch.verify.behaviour import Failed, Subject

MODE = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
ATTENTION = "npu_fused_infer_attention_score"
WORKSPACE = f"_{ATTENTION}_get_max_workspace"
ADD_RMS_NORM = "npu_add_rms_norm"
REBOUND = (ATTENTION, WORKSPACE, ADD_RMS_NORM)

ROWS = 3
CONTEXTS: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    torch.no_grad,
    torch.inference_mode,
)
"""What SGLang serves under: the first by default, the second by choice."""

Installed = Literal["1.0.0", "2.0.0", "none", "another"]
"""A version of the extension, or the package that only shares its import name."""

OLD_TORCH_NPU = "2.8.0.post2"
"""One that offers no graph handlers, as goes with version 1.0.0 of the extension."""


@dataclass
class Machine:
    """Hold the executed module of the mode and what stands around it."""

    mode: ModuleType
    torch_npu: ModuleType
    registered: list[tuple[str, Any, str]] = field(default_factory=list)
    """What the tree registered with torch's dispatcher: operator, function, dispatch key."""

    @property
    def takes_bmm(self) -> bool:
        """Whether the mode can be entered without bmm."""
        return "enable_bmm" in self.mode.enable_batch_invariant_mode.__code__.co_varnames

    def namespaces(self) -> dict[str, Any]:
        """Return where operators are called as attributes."""
        return {"torch.ops.npu": torch.ops.npu, "torch_npu": self.torch_npu}

    def rebound(self) -> dict[str, object]:
        """Return the very objects that a caller of each attribute gets."""
        return {
            f"{name}.{operator}": getattr(namespace, operator)
            for name, namespace in self.namespaces().items()
            for operator in REBOUND
        }

    def enable(self, **options: bool) -> None:
        """Enter the mode."""
        self.mode.enable_batch_invariant_mode(**options)

    def disable(self) -> None:
        """Leave the mode."""
        self.mode.disable_batch_invariant_mode()


@contextmanager
def machine(
    subject: Subject, installed: Installed = "2.0.0", version: str = ""
) -> Iterator[Machine]:
    """Give a machine with the mode off, and take everything down again.

    Args:
        version: of torch_npu, the subject's where it is empty.
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
        provide["batch_invariant_ops"] = extension.install(installed, version)
    bmm = torch.bmm
    registered: list[tuple[str, Any, str]] = []
    try:
        with Execution(subject.package, "npu", provide) as execution, _watched(registered):
            yield Machine(execution.load(MODE), fake, registered)
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


@dataclass(frozen=True)
class Operation:
    """A call whose result has one row for each row of the input.

    `reaches` are the extension's operators that may do it, none if operators of torch_npu do it
    that are batch-invariant by themselves.
    """

    code: str
    call: Callable[[Machine, torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    reaches: frozenset[str]
    dtype: torch.dtype = torch.float32

    def batch(self) -> torch.Tensor:
        """Return an input of some rows."""
        return npu(random((ROWS, *self.shape), 1, self.dtype))


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a CPU tensor that is the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an npu tensor that is the same for the same shape."""
    return npu(random(shape, len(shape) + sum(shape), dtype))


def parameter(*shape: int) -> torch.Tensor:
    """Return a weight as a module holds it: it asks for gradients, whatever the mode."""
    return weight(*shape).requires_grad_()


def difference(on: Machine, operation: Operation) -> str:
    """Say by what a result depends on its batch; empty if it does not, and is the replacement's."""
    extension.calls.clear()
    torch_npu.native_calls.clear()
    batch = operation.batch()
    together = cpu(operation.call(on, batch)).clone()
    reached = {call.operator.partition(".")[0] for call in extension.calls}
    native = {*torch_npu.native_calls} & {ATTENTION, f"{ATTENTION}.out", ADD_RMS_NORM}
    if native:
        return f"the native {min(native)} is called"
    if operation.reaches and not operation.reaches & reached:
        return "no operator of batch_invariant_ops is called"
    if operation.reaches and not reached <= operation.reaches | {f"_{ATTENTION_OF_EXTENSION}"}:
        return f"{', '.join(sorted(reached))} is called"
    rows = [cpu(operation.call(on, batch[i : i + 1])) for i in range(ROWS)]
    for index, row in enumerate(rows):
        if not torch.equal(row, together[index : index + 1]):
            return f"row {index} alone differs in its bits from the same row among {ROWS}"
    return ""


ATTENTION_OF_EXTENSION = f"{ATTENTION}_batch_invariant_get_max_workspace"


def require_invariant(on: Machine, operations: Mapping[str, Operation]) -> None:
    """Raise Failed for the first operation that depends on its batch, under either mode."""
    for name, operation in operations.items():
        for context in CONTEXTS:
            with context():
                found = difference(on, operation)
            if found:
                raise Failed(
                    f"{name} under {context.__name__}: {found}",
                    expected="each row as if it were alone, by Ascend's batch-invariant operators",
                    found=found,
                    code=operation.code,
                )


def require_native(on: Machine, operations: Mapping[str, Operation]) -> None:
    """Raise Failed for the first operation that is not the device's own."""
    for name, operation in operations.items():
        for context in CONTEXTS:
            with context():
                if not difference(on, operation):
                    raise Failed(
                        f"{name} is still replaced",
                        expected="the device's own kernel",
                        found="Ascend's batch-invariant operator",
                        code=operation.code,
                    )


def invariant(on: Machine, operations: Mapping[str, Operation]) -> frozenset[str]:
    """Name the operations that do not depend on their batch now."""
    found = set()
    with torch.no_grad():
        for name, operation in operations.items():
            try:
                if not difference(on, operation):
                    found.add(name)
            except Exception:  # noqa: BLE001  # an operation that fails is not batch-invariant
                continue
    return frozenset(found)


def error_of(call: Callable[[], Any]) -> Exception | None:
    """Return the error that a call ends in, if any."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    return None
