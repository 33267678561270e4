"""What `torch.npu` offers beside tensors: streams, events, memory.

There is one stream and whatever is asked of the device is done when the call returns, so that
streams and events have nothing to wait for. What is not here raises by its name.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from sgl_npu_patch.simulator import device as simulated

MEMORY = 64 << 30
"""Bytes that the device seems to have, all of them free."""


class DeviceEvent:
    """A point of the one stream, which is always reached."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def wait(self, stream: object = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Report that everything before it is done."""
        return True

    def elapsed_time(self, end: DeviceEvent) -> float:
        """Return 0: no time passes on the device."""
        return 0.0


class DeviceStream(nullcontext[None]):
    """The one stream, under any number of names."""

    npu_stream = 0

    def __init__(self, device: object = None, priority: int = 0, **options: object) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """Return the one device."""
        return torch.device(simulated.NPU, 0)

    def wait_stream(self, stream: object) -> None:
        """Do nothing."""

    def wait_event(self, event: object) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def record_event(self, event: DeviceEvent | None = None) -> DeviceEvent:
        """Return the event."""
        return event or DeviceEvent()

    def query(self) -> bool:
        """Report that everything is done."""
        return True


class Runtime(simulated.Backend):
    """What is registered with torch as `torch.npu`."""

    __name__ = "torch.npu"
    Event = DeviceEvent
    Stream = DeviceStream

    def __init__(self) -> None:
        self.config = SimpleNamespace(allow_internal_format=False)
        self._stream = DeviceStream()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"torch.npu.{name} is not simulated", name=name, obj=self)

    def init(self) -> None:
        """Do nothing: the device is there."""

    def device(self, device: object = None) -> AbstractContextManager[None]:
        """Choose the one device."""
        return nullcontext()

    def current_stream(self, device: object = None) -> DeviceStream:
        """Return the one stream."""
        return self._stream

    default_stream = current_stream

    def set_stream(self, stream: DeviceStream) -> None:
        """Choose the one stream."""

    def stream(self, stream: DeviceStream | None) -> AbstractContextManager[None]:
        """Choose the one stream for a while."""
        return nullcontext()

    StreamContext = stream

    def set_stream_limit(self, stream: DeviceStream, cube: int, vector: int) -> None:
        """Do nothing: the cores of the device are not simulated."""

    def is_current_stream_capturing(self) -> bool:
        """Report that no graph is being captured."""
        return False

    def graph_pool_handle(self) -> None:
        """Return no pool: graphs are not simulated."""

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return the free and the total memory."""
        return MEMORY, MEMORY

    def get_device_properties(self, device: object = None) -> Any:
        """Return the properties of the device."""
        name = self.get_device_name()
        return SimpleNamespace(name=name, total_memory=MEMORY, multi_processor_count=24)

    def get_device_capability(self, device: object = None) -> None:
        """Return None, as torch_npu does."""

    def is_bf16_supported(self) -> bool:
        """Report that there is bfloat16."""
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the types of automatic mixed precision."""
        return [torch.float16, torch.bfloat16]

    def empty_cache(self) -> None:
        """Do nothing: the CPU's allocator keeps no cache."""

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Do nothing: memory is not counted."""

    def memory_allocated(self, device: object = None) -> int:
        """Return 0: memory is not counted."""
        return 0

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated

    def manual_seed(self, seed: int) -> None:
        """Do nothing: random numbers are the CPU's, which torch seeds with the same call."""

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """Return the state of the CPU's generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        """Set the state of the CPU's generator."""
        torch.set_rng_state(state)

    def set_compile_mode(self, **options: object) -> None:
        """Do nothing: no kernel is compiled."""


def transfer_to_npu() -> None:
    """Let the functions of `torch.cuda` be those of `torch.npu`, as the real module of this name.

    Tensors on a device "cuda" are not redirected: torch refuses them by name.
    """
    for name in dir(Runtime):
        if not name.startswith("_") and hasattr(torch.cuda, name):
            setattr(torch.cuda, name, getattr(torch.get_device_module(simulated.NPU), name))
