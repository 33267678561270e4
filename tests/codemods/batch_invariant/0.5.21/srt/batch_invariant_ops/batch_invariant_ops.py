import contextlib

import torch

from sglang.srt.utils.common import is_npu, get_dispatch_device_backend

_MODE = False
_LIB = None
_bmm = None
_is_npu = is_npu()
if _is_npu:
    import torch_npu


def enable_batch_invariant_mode(enable_bmm: bool = True):
    global _MODE, _LIB, _bmm
    if _MODE:
        return

    key = get_dispatch_device_backend()

    if is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        _LIB = npu_ops.enable(key, enable_bmm)
        _MODE = True
        return

    _MODE = True
    _LIB = torch.library.Library("aten", "IMPL")
    if not _is_npu:
        _LIB.impl("aten::mm", triton_mm, key)
        if enable_bmm:
            _bmm = torch.bmm
            torch.bmm = triton_bmm
    else:
        from sglang.srt.hardware_backend.npu.batch_invariant_ops.npu_batch_invariant_ops import (
            npu_attention,
            npu_mm,
        )

        _LIB.impl("aten::mm", npu_mm, key)
        torch.ops.npu.npu_fused_infer_attention_score = npu_attention
        torch_npu.npu_add_rms_norm = npu_attention


def disable_batch_invariant_mode():
    global _MODE, _LIB, _bmm
    if _MODE and is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        npu_ops.disable()
    if _LIB is not None:
        _LIB._destroy()
    if _bmm is not None:
        torch.bmm, _bmm = _bmm, None
    _MODE = False
    _LIB = None


@contextlib.contextmanager
def set_batch_invariant_mode(enabled: bool = True):
    global _MODE, _LIB
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
                enable_batch_invariant_mode(enable_bmm=was_bmm)
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
