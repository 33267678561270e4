"""Count what the replaced operators cost: kernels that run, and bytes that are copied for them.

On the simulated NPU each kernel of the device is one call, so both counts hold for the device too;
how long a kernel takes does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from sgl_npu_patch.simulator import device, extension, torch_npu
from sgl_npu_patch.simulator.device import npu
from sgl_npu_patch.verify.behaviour.sampler_machine import Machine
from tests.upstream.trees import patched_tree

RELEASE = "0.5.12.post1"
NO_KERNELS = {"_reshape_alias", "as_strided", "empty", "empty_strided", "view"}
TOKENS, HIDDEN, WIDE, VOCABULARY = 8, 1024, 4096, 32_000


@dataclass(slots=True)
class Count:
    """Count kernels; a copy is one, a view is none."""

    kernels: list[str] = field(default_factory=list)
    copied: int = 0

    def __call__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Observe one call."""
        if name == "aten::_copy_from":
            self.copied += result.numel() * result.element_size()
        if device.plain_name(name) not in NO_KERNELS:
            self.kernels.append(name)


def counted(call: Callable[[], object]) -> Count:
    count = Count()
    with device.observed(count), torch.no_grad():
        call()
    return count


def tensor(*shape: int) -> torch.Tensor:
    return npu(torch.randn(*shape).to(torch.bfloat16))


def calls() -> dict[str, Callable[[], object]]:
    """Return one call of each kind that SGLang's layers make."""
    import torch_npu as library

    x, wide = tensor(TOKENS, HIDDEN), tensor(WIDE, HIDDEN)
    bias, scale, logits = tensor(WIDE), tensor(HIDDEN), tensor(TOKENS, VOCABULARY)
    batch = tensor(4, TOKENS, HIDDEN)
    return {
        "linear layer": lambda: functional.linear(x, wide),
        "linear layer with bias": lambda: functional.linear(x, wide, bias),
        "batched matmul": lambda: torch.bmm(batch, batch.transpose(1, 2)),
        "mean over the last axis": lambda: x.mean(-1),
        "mean over the first axis": lambda: x.mean(0),
        "log-softmax of logits": lambda: torch.log_softmax(logits, -1),
        "add and RMS norm": lambda: library.npu_add_rms_norm(x, x, scale),
    }


def operators() -> None:
    """Print kernels and copies with the mode off and on."""
    device.install()
    torch_npu.install()
    extension.install()
    from sgl_npu_patch.npu_ops import npu_ops

    off = {name: counted(call) for name, call in calls().items()}
    library: Any = npu_ops.enable()
    on = {name: counted(call) for name, call in calls().items()}
    library._destroy()
    npu_ops.disable()
    print(f"{'call':<26}{'kernels off':>12}{'on':>5}{'copied off':>15}{'on':>12}")
    for name, before in off.items():
        after = on[name]
        print(
            f"{name:<26}{len(before.kernels):>12}{len(after.kernels):>5}"
            f"{before.copied:>13} B{after.copied:>10} B"
        )


def draws() -> None:
    """Print the kernels of sampling a token by its request's seed, without the hash of the seed."""
    machine = Machine(patched_tree(RELEASE))
    weights = npu(torch.randn(TOKENS, VOCABULARY).log_softmax(-1))
    seeds, positions = npu(torch.arange(TOKENS)), npu(torch.arange(TOKENS))
    hashed = torch.ones(TOKENS, VOCABULARY, dtype=torch.uint32)
    machine.hash = lambda *arguments: npu(hashed)
    with machine.execution:
        seeded = counted(lambda: machine.module.multinomial_with_seed(weights, seeds, positions))
    native = counted(lambda: torch.multinomial(weights.exp(), 1))
    print(f"{'sampling a token':<26}{len(native.kernels):>12}{len(seeded.kernels):>5}", end="")
    print(f"{native.copied:>13} B{seeded.copied:>10} B")


if __name__ == "__main__":
    operators()
    draws()
