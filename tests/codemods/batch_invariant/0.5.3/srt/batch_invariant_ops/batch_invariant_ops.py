import contextlib

import torch

_MODE = False
_LIB = None


def enable_batch_invariant_mode():
    global _MODE, _LIB
    if _MODE:
        return

    from sglang.srt.utils.common import is_npu

    if is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        _LIB = npu_ops.enable("NPU")
        _MODE = True
        return
    _MODE = True
    _LIB = torch.library.Library("aten", "IMPL")
    _LIB.impl("aten::mm", triton_mm, "CUDA")


def disable_batch_invariant_mode():
    global _MODE, _LIB
    from sglang.srt.utils.common import is_npu

    if _MODE and is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        npu_ops.disable()
    if _LIB is not None:
        _LIB._destroy()
    _MODE = False
    _LIB = None


@contextlib.contextmanager
def set_batch_invariant_mode(enabled: bool = True):
    global _MODE, _LIB
    from sglang.srt.utils.common import is_npu

    if is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        was_enabled, was_bmm = _MODE, npu_ops.bmm_enabled()
        if enabled:
            enable_batch_invariant_mode()
        else:
            disable_batch_invariant_mode()
        try:
            yield
        finally:
            if was_enabled:
                enable_batch_invariant_mode()
            else:
                disable_batch_invariant_mode()
        return
    before = (_MODE, _LIB)
    if enabled:
        enable_batch_invariant_mode()
    else:
        disable_batch_invariant_mode()
    yield
    _MODE, _LIB = before
