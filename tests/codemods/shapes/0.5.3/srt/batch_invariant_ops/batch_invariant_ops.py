import contextlib

import torch

_MODE = False
_LIB = None


def enable_batch_invariant_mode():
    global _MODE, _LIB
    if _MODE:
        return
    _MODE = True
    _LIB = torch.library.Library("aten", "IMPL")
    _LIB.impl("aten::mm", triton_mm, "CUDA")


def disable_batch_invariant_mode():
    global _MODE, _LIB
    if _LIB is not None:
        _LIB._destroy()
    _MODE = False
    _LIB = None


@contextlib.contextmanager
def set_batch_invariant_mode(enabled: bool = True):
    global _MODE, _LIB
    before = (_MODE, _LIB)
    if enabled:
        enable_batch_invariant_mode()
    else:
        disable_batch_invariant_mode()
    yield
    _MODE, _LIB = before
