"""Build a small package that the whole series can patch, and run the program on it."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path, PurePosixPath
from typing import Any
from unittest import mock

from sgl_npu_patch import cli
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.plan import Plan, make_plan
from sgl_npu_patch.engine.trees.directory import open_directory
from tests.upstream.program import Run

ARGUMENTS = "srt/server_args.py"
COMMON = "srt/utils/common.py"
MODE = "srt/batch_invariant_ops/batch_invariant_ops.py"
ATTENTION = "srt/layers/attention/ascend_backend.py"
SAMPLER = "srt/layers/sampler.py"
VENDORED = "srt/hardware_backend/npu/batch_invariant_ops"
BATCH = "srt/managers/schedule_batch.py"
BATCH_INFO = "srt/sampling/sampling_batch_info.py"
ADDED = tuple(f"{VENDORED}/{name}.py" for name in sorted(PROJECT.vendored))
CHANGED = (MODE, SAMPLER, BATCH, BATCH_INFO, ARGUMENTS, COMMON)
WRITTEN = tuple(sorted((*CHANGED, *ADDED)))
CHANGE = f"change {len(CHANGED)} files and add {len(ADDED)}"
CHANGED_AND_ADDED = CHANGE.replace("change", "changed").replace("add", "added")
"""What is said of them, before and after."""

# No gate for the radix cache: it and the launch guards then edit the same function.
SOURCES: Mapping[str, str] = {
    "__init__.py": "",
    "version.py": '__version__ = "0.0.1"\n',
    "srt/__init__.py": "",
    ARGUMENTS: """\
import logging

logger = logging.getLogger(__name__)

DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["one", "two"]


class ServerArgs:
    enable_deterministic_inference: bool = False

    def _handle_deterministic_inference(self):
        if self.enable_deterministic_inference:
            if self.attention_backend not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
                raise ValueError("no such backend")

            self.last = True

    def other(self):
        return "caf\u00e9"
""",
    BATCH: """\
class ScheduleBatch:
    def prepare_for_decode(self):
        if self.sampling_info.penalizer_orchestrator.is_required:
            self.count()
""",
    BATCH_INFO: """\
import dataclasses


class SamplingBatchInfo:
    @classmethod
    def from_schedule_batch(cls, batch):
        ret = cls(penalizer_orchestrator=batch.penalties)
        return ret

    def copy_for_forward(self):
        self.update_penalties()
        return dataclasses.replace(self, penalizer_orchestrator=None)
""",
    COMMON: """\
def is_npu():
    return False


def get_dispatch_device_backend():
    if is_cuda():
        key = "CUDA"
    elif is_xpu():
        key = "XPU"
    else:
        raise RuntimeError("no key")
    return key
""",
    MODE: """\
import contextlib

import torch

from sglang.srt.utils.common import get_dispatch_device_backend

_on = False
_library = None


def enable_batch_invariant_mode():
    global _on, _library
    if _on:
        return
    key = get_dispatch_device_backend()
    _on = True
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("aten::mm", print, key)


def disable_batch_invariant_mode():
    global _on, _library
    _on = False
    _library = None


@contextlib.contextmanager
def set_batch_invariant_mode(enabled=True):
    global _on, _library
    yield
""",
    ATTENTION: """\
class Backend:
    def forward_extend(self, q, lens):
        if not self.use_mla:
            if self.use_fia:
                for extent in self.extend_seq_lens_cpu:
                    torch.ops.npu.npu_fused_infer_attention_score(q, extent)
""",
    SAMPLER: """\
def sample(backend):
    if backend == "flashinfer":
        return 0
    if backend == "pytorch":
        return multinomial_with_seed(1)


def multinomial_with_seed(inputs):
    return inputs.log()


def top_k_top_p_min_p_sampling_from_probs_torch(
    probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
):
    return probs.sort(sampling_seed)
""",
}


def build(root: Path, layout: str = "python/sglang", **replaced: str | bytes | None) -> Path:
    """Write the package below `root` and return its folder.

    A file is replaced by its module's name (``server_args=...``), or left out by None.
    """
    package = root / layout
    for name, source in SOURCES.items():
        content = replaced.get(PurePosixPath(name).stem, source)
        if content is not None:
            target = package / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return package


def plan_of(root: Path) -> Plan:
    """Judge the whole series on a tree."""
    return make_plan(open_directory(root, PROJECT), SERIES)


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return kind, mode, mtime and content of everything below `root`."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        name, status = path.relative_to(root).as_posix(), path.lstat()
        if path.is_symlink():
            found[name] = ("link", path.readlink())
        elif path.is_dir():
            found[name] = ("folder", status.st_mode)
        elif path.is_file():
            found[name] = (path.read_bytes(), status.st_mode, status.st_mtime_ns)
        else:
            found[name] = ("special", status.st_mode)
    return found


def contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file below `root`, git's own left out."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


@dataclass(slots=True)
class _Stream:
    """A text stream over bytes, as the interpreter's own are."""

    text: TextIOWrapper
    data: BytesIO


def _stream() -> _Stream:
    data = BytesIO()
    return _Stream(TextIOWrapper(data, encoding="utf-8", write_through=True), data)


def run(*arguments: str | Path) -> Run:
    """Run the program in this process, which takes a tenth of the time of another one."""
    out, err = _stream(), _stream()
    argv = ["sgl-npu-patch", *map(str, arguments)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            mock.patch.object(sys, "argv", argv),
            redirect_stdout(out.text),
            redirect_stderr(err.text),
        ):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.enable()
    assert isinstance(code, int)
    return Run(code, out.data.getvalue(), err.data.getvalue().decode())
