"""Alter what the patch wrote: the checks of that place fail, and name its seam."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sgl_npu_patch.engine import vendor
from tests.upstream.behaviour import failed, seams_of, subject_of, verdicts
from tests.upstream.edited import (
    COMMON,
    OPS,
    SERVER_ARGS,
    Files,
    cut,
    judge,
    lay_out,
    result,
    sources,
    statuses,
)
from tests.upstream.releases import release_tree

NEW, OLD, NO_GATE = "0.5.12.post1", "0.5.9", "0.5.3.post2"
NPU_OPS = f"{vendor.FOLDER}/npu_ops.py"
GUARDS = f"{vendor.FOLDER}/launch_guards.py"
HANDLER = "_handle_deterministic_inference"
CHOICES = "DETERMINISTIC_ATTENTION_BACKEND_CHOICES = "
RADIX = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = "
ENABLE, DISABLE, SCOPED = (f"{verb}_batch_invariant_mode" for verb in ("enable", "disable", "set"))


@dataclass(frozen=True)
class Fault:
    """A text of a patched tree, once in a function if one is named, and what takes its place."""

    path: str
    function: str
    old: str
    new: str
    group: str
    seams: str
    version: str = NEW

    def make(self, files: Files) -> None:
        """Edit the files of the patched tree."""
        text = cut(files, self.path, self.function) if self.function else files[self.path].decode()
        assert text.count(self.old) == 1, text.count(self.old)
        files[self.path] = (
            files[self.path].decode().replace(text, text.replace(self.old, self.new)).encode()
        )


LISTED = '["flashinfer", "fa3", "triton", "ascend"]'
UNLISTED = '["flashinfer", "fa3", "triton"]'
FAULTS = {
    "the attention backend is not listed": Fault(
        SERVER_ARGS, "", CHOICES + LISTED, CHOICES + UNLISTED, "handler", "backend_lists"
    ),
    "it is listed twice": Fault(
        SERVER_ARGS,
        "",
        CHOICES + LISTED,
        CHOICES + LISTED.replace("]", ', "ascend"]'),
        "handler",
        "backend_lists",
    ),
    "another backend is listed": Fault(
        SERVER_ARGS,
        "",
        CHOICES + LISTED,
        CHOICES + LISTED.replace("]", ', "torch_native"]'),
        "handler",
        "backend_lists",
    ),
    "the radix cache is off": Fault(
        SERVER_ARGS,
        "",
        RADIX + '["fa3", "triton", "ascend"]',
        RADIX + '["fa3", "triton"]',
        "handler",
        "radix_cache",
    ),
    "the radix cache is on for another": Fault(
        SERVER_ARGS,
        "",
        RADIX + '["fa3", "triton", "ascend"]',
        RADIX + '["fa3", "triton", "ascend", "flashinfer"]',
        "handler",
        "radix_cache",
    ),
    "the radix cache is on where prefill ignores it": Fault(
        SERVER_ARGS,
        "",
        RADIX + '["fa3", "triton"]',
        RADIX + '["fa3", "triton", "ascend"]',
        "handler",
        "radix_cache",
        OLD,
    ),
    "the gate is for others": Fault(
        SERVER_ARGS,
        HANDLER,
        'self.attention_backend == "ascend"',
        'self.attention_backend != "ascend"',
        "handler",
        "radix_cache",
        NO_GATE,
    ),
    "the sampling backend is forced": Fault(
        SERVER_ARGS,
        HANDLER,
        'self.sampling_backend != "ascend"',
        "True",
        "handler",
        "sampling_backend",
    ),
    "the other sampling backends are kept": Fault(
        SERVER_ARGS,
        HANDLER,
        'self.sampling_backend != "ascend"',
        'self.sampling_backend == "ascend"',
        "handler",
        "sampling_backend",
    ),
    "the guards are not called": Fault(
        SERVER_ARGS, HANDLER, "launch_guards.apply(self)", "pass", "handler", "launch_guards"
    ),
    "the guards are called elsewhere": Fault(
        SERVER_ARGS, HANDLER, "if is_npu():", "if not is_npu():", "handler", "launch_guards"
    ),
    "the guards are called without determinism": Fault(
        SERVER_ARGS,
        HANDLER,
        "        if self.enable_deterministic_inference:\n",
        "        if is_npu():\n            from sglang.srt.hardware_backend.npu."
        "batch_invariant_ops import launch_guards\n            launch_guards.apply(self)\n"
        "        if self.enable_deterministic_inference:\n",
        "handler",
        "launch_guards",
    ),
    "the user's collectives are overwritten": Fault(
        GUARDS,
        "apply",
        "os.environ.setdefault(variable, value)",
        "os.environ[variable] = value",
        "handler",
        "launch_guards",
    ),
    "a warning is repeated": Fault(
        GUARDS, "_warn_once", "_warned.add(key)", "pass", "handler", "launch_guards"
    ),
    "graphs go always": Fault(
        GUARDS, "apply", "not _graph_capture_supported()", "True", "handler", "launch_guards"
    ),
    "graphs stay always": Fault(
        GUARDS, "apply", "not _graph_capture_supported()", "False", "handler", "launch_guards"
    ),
    "an NPU has the key of CUDA": Fault(
        COMMON,
        "get_dispatch_device_backend",
        'dispatch_key = "NPU"',
        'dispatch_key = "CUDA"',
        "dispatch",
        "device_dispatch",
    ),
    "every device has the key of an NPU": Fault(
        COMMON,
        "get_dispatch_device_backend",
        "elif is_xpu():",
        'elif True:\n        dispatch_key = "NPU"\n    elif is_xpu():',
        "dispatch",
        "device_dispatch",
    ),
    "the predicate is not in the file": Fault(
        COMMON,
        "get_dispatch_device_backend",
        "elif is_npu():",
        "elif is_ascend_npu():",
        "dispatch",
        "device_dispatch",
    ),
    "the choice of bmm is dropped": Fault(
        OPS,
        ENABLE,
        "(dispatch_key, enable_bmm)",
        "(dispatch_key)",
        "batch_invariant",
        "batch_invariant",
    ),
    "the key is CUDA's": Fault(
        OPS,
        ENABLE,
        "npu_ops.enable(dispatch_key",
        'npu_ops.enable("CUDA"',
        "batch_invariant",
        "batch_invariant",
    ),
    "the flag is not set": Fault(
        OPS,
        ENABLE,
        "        _batch_invariant_MODE = True\n        return\n",
        "        return\n",
        "batch_invariant",
        "batch_invariant",
    ),
    "the CUDA set is registered as well": Fault(
        OPS,
        ENABLE,
        "        _batch_invariant_MODE = True\n        return\n",
        "        _batch_invariant_MODE = True\n",
        "batch_invariant",
        "batch_invariant",
    ),
    "other devices get the NPU's": Fault(
        OPS,
        ENABLE,
        "    if is_npu():",
        "    if not is_npu():",
        "batch_invariant",
        "batch_invariant",
    ),
    "CUDA loses an operator": Fault(
        OPS,
        ENABLE,
        '    _batch_invariant_LIB.impl("aten::mm", mm_batch_invariant, dispatch_key)\n',
        "",
        "batch_invariant",
        "batch_invariant",
    ),
    "the rebinding is not undone": Fault(
        OPS, DISABLE, "npu_ops.disable()", "pass", "batch_invariant", "batch_invariant"
    ),
    "the library is not destroyed": Fault(
        OPS,
        DISABLE,
        "_batch_invariant_LIB._destroy()",
        "pass",
        "batch_invariant",
        "batch_invariant",
    ),
    "a scoped mode ends the other way": Fault(
        OPS,
        SCOPED,
        "if was_enabled:",
        "if not was_enabled:",
        "batch_invariant",
        "batch_invariant",
    ),
    "a scoped mode forgets bmm": Fault(
        OPS, SCOPED, "enable_bmm=was_bmm", "", "batch_invariant", "batch_invariant"
    ),
    "a scoped mode is left open by an exception": Fault(
        OPS,
        SCOPED,
        "        finally:\n",
        "        except GeneratorExit:\n            pass\n        else:\n",
        "batch_invariant",
        "batch_invariant",
    ),
    "addmm is not registered": Fault(
        NPU_OPS, "", '        "addmm": addmm,\n', "", "batch_invariant", "batch_invariant"
    ),
    "one namespace is not rebound": Fault(
        NPU_OPS,
        "",
        "for namespace in (torch.ops.npu, torch_npu):",
        "for namespace in (torch.ops.npu,):",
        "batch_invariant",
        "batch_invariant",
    ),
    "it is undone to another object": Fault(
        NPU_OPS,
        "disable",
        "setattr(namespace, name, original)",
        "setattr(namespace, name, lambda *given, **named: original(*given, **named))",
        "batch_invariant",
        "batch_invariant",
    ),
    "the extension is not asked for": Fault(
        NPU_OPS, "enable", "    _require_extension()\n", "", "batch_invariant", "batch_invariant"
    ),
    "addmm forgets beta": Fault(
        NPU_OPS,
        "addmm",
        "torch.add(product, addend, alpha=beta)",
        "torch.add(product, addend)",
        "npu_ops",
        "npu_ops",
    ),
    "the sum is not the sum": Fault(
        NPU_OPS, "", "return normed, rstd, total", "return normed, rstd, x1", "npu_ops", "npu_ops"
    ),
    "a mean has another dtype": Fault(
        NPU_OPS,
        "mean",
        "result.reshape(shape).to(result_dtype)",
        "result.reshape(shape).float()",
        "npu_ops",
        "npu_ops",
    ),
    "an axis is not moved back": Fault(
        NPU_OPS, "log_softmax", ".movedim(-1, axis)", "", "npu_ops", "npu_ops"
    ),
    "out falls back to the native kernel": Fault(
        NPU_OPS,
        "",
        '        _raise_needs_version_2(f"{_ATTENTION}.out")\n',
        "        originals = _state.originals\n"
        "        return originals[(torch_npu, _ATTENTION)].out(*args, **kwargs)\n",
        "npu_ops",
        "npu_ops",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_its_seam_named(name: str) -> None:
    fault = FAULTS[name]
    pristine = sources(fault.version)
    plan = judge(pristine)
    files = result(pristine, plan)
    fault.make(files)
    tree = lay_out(fault.version, files)
    of = subject_of(tree, statuses(plan), release_tree(fault.version) / "sglang")
    assert seams_of(failed(verdicts(of, fault.group))) == {*fault.seams.split()}
