"""A command runs on the simulated NPU in each of its processes, and leaves none behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.package import build
from tests.engine.package import run as run_here
from tests.engine.wheels import build_wheel
from tests.upstream.program import ROOT

HUNG = 120
"""Seconds after which a test that waits for a process fails."""

USER = """\
import json, subprocess, sys
from importlib import metadata, util

import torch

if sys.argv[1:]:
    print(torch.ones(2, device="npu").sum().item())
    sys.exit()
import batch_invariant_ops, sglang, torch_npu
from sglang import version

x = torch.arange(6.0, device="npu").reshape(2, 3)
stream, end = torch.npu.Stream(), torch.npu.Event()
with torch.npu.stream(stream):
    y = torch.mm(x, x.t())
    end.record(stream)
stream.wait_event(end)
x.record_stream(stream)
try:
    x.to("npu").record_stream(0)
except TypeError:
    pass
else:
    raise AssertionError("0 is no stream")
y.record_stream(stream)
torch.npu.current_stream().synchronize()
child = subprocess.run([sys.executable, __file__, "child"], check=True, stdout=subprocess.PIPE)
torch.distributed.init_process_group(
    "hccl", store=torch.distributed.HashStore(), rank=0, world_size=1
)
torch_npu.npu.config.allow_internal_format = True
rows = torch.rand(2, 64)
device_rows = rows.to("npu")
print(json.dumps({
    "tree": sglang.__file__,
    "version": version.__version__,
    "products": y.tolist(),
    "swiglu": torch_npu.npu_swiglu(torch.ones(1, 2, device="npu")).shape,
    "operators": torch.ops.batch_invariant_ops.npu_mm_batch_invariant(x, x.t().contiguous()).shape,
    "versions": [metadata.version("torch_npu"), torch_npu.__version__],
    "found": all(util.find_spec(name) for name in ("torch_npu", "batch_invariant_ops")),
    "both": torch.npu.config is torch_npu.npu.config,
    "child": child.stdout.decode().strip(),
    "alone": (device_rows[:1].sum(-1) == device_rows.sum(-1)[:1]).item(),
}))
"""

UNSIMULATED = """\
import torch
import torch_npu
import torchair
from sgl_kernel_npu.norm.some_norm import some_kernel
from torch_npu.multiprocessing import reductions
from torch_npu.profiler import profile
from torchair.configs.compiler_config import CompilerConfig
from torchvision.io import decode_jpeg

CompilerConfig().mode = "max-autotune"
backend = torchair.get_npu_backend(compiler_config=CompilerConfig())
x = torch.ones(2, device="npu")
for use in (
    lambda: some_kernel[1](x),
    lambda: bool(some_kernel.anything),
    lambda: reductions.rebuild_npu_tensor(),
    lambda: profile(),
    lambda: backend(None, []),
    lambda: decode_jpeg(x),
    lambda: torch_npu.npu_fused_matmul(x),
    lambda: torch.ops.npu.npu_fused_matmul(x),
    lambda: torch.npu.NPUGraph(),
    lambda: torch_npu.npu.NPUGraph(),
    lambda: torch_npu.npu_no_operator(x),
    lambda: torch_npu.npu_rotary_mul(x, x, x, "interleave"),
):
    try:
        print("passed", use())
    except (AttributeError, NotImplementedError) as error:
        print(error)
"""

NAMED = """\
sgl_kernel_npu.norm.some_norm.some_kernel is not simulated
sgl_kernel_npu.norm.some_norm.some_kernel.anything is not simulated
torch_npu.multiprocessing.reductions.rebuild_npu_tensor is not simulated
torch_npu.profiler.profile is not simulated
the backend of torchair is not simulated
torchvision.io.decode_jpeg is not simulated
torch_npu.npu_fused_matmul is not simulated
'_OpNamespace' 'npu' object has no attribute 'npu_fused_matmul'
torch.npu.NPUGraph is not simulated
torch.npu.NPUGraph is not simulated
torch_npu.npu_no_operator is not simulated
the simulated npu_rotary_mul takes no rotary_mode='interleave'
"""

# Holds a port and a grandchild that nothing but SIGKILL ends; both have the output open.
HOLDING = """\
import os, signal, socket, subprocess, sys

grandchild = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " \\
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('there', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", grandchild], stdout=subprocess.PIPE)
child.stdout.readline()
port = socket.create_server(("127.0.0.1", 0))
print(port.getsockname()[1], flush=True)
if sys.argv[1] == "crash":
    os._exit(3)
signal.pause()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    build(tmp_path / "tree")
    return tmp_path / "tree"


def command(tree: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "sgl_npu_patch", "simulate", str(tree), *arguments]


def simulate(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(tree, *arguments),
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HUNG,
    )


def script(tree: Path, text: str) -> str:
    file = tree.parent / "script.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_script_and_its_child_use_the_device(tree: Path) -> None:
    done = simulate(tree, "--", "python", script(tree, USER))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found.pop("tree")).is_relative_to(tree)
    assert found == {
        "version": "0.0.1",
        # The kernel that the patch replaces, for a batch of two.
        "products": [pytest.approx([5, 14]), pytest.approx([14, 50])],
        "swiglu": [1, 1],
        "operators": [2, 2],
        "versions": ["2.10.0", "2.10.0"],
        "found": True,
        "both": True,
        "child": "2.0",
        "alone": False,
    }


def test_torch_npu_may_be_imported_first(tree: Path) -> None:
    done = simulate(tree, "--", "python", "-c", "import torch_npu, torch; print(torch.npu.MEMORY)")
    assert done.returncode == 1
    assert done.stderr.endswith("AttributeError: torch.npu.MEMORY is not simulated\n")


def test_what_is_not_simulated_raises_by_its_name(tree: Path) -> None:
    done = simulate(tree, "--", "python", script(tree, UNSIMULATED))
    assert done.returncode == 0, done.stderr
    assert done.stdout == NAMED


def test_functions_of_cuda_become_those_of_the_device(tree: Path) -> None:
    transfer = (
        "import torch; from torch_npu.contrib import transfer_to_npu; "
        "print(torch.cuda.get_device_name(), torch.cuda.mem_get_info() == torch.npu.mem_get_info())"
    )
    done = simulate(tree, "--", "python", "-c", transfer)
    assert done.stdout == "Ascend910B (simulated) True\n"


@pytest.mark.parametrize(("ending", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_commands(tree: Path, ending: str, code: int) -> None:
    assert simulate(tree, "--", "sh", "-c", ending).returncode == code


def test_a_command_that_is_not_there(tree: Path) -> None:
    done = simulate(tree, "--", "no-such-command", "--help")
    assert done.returncode == 4
    assert done.stderr == "sgl-npu-patch: no-such-command: No such file or directory\n"


def test_without_a_command_the_environment_is_printed(tree: Path) -> None:
    done = run_here("simulate", str(tree))
    assert done.code == 0
    exports = [shlex.split(line) for line in done.stdout.decode().splitlines()]
    assert {each[0] for each in exports} == {"export"}
    given = dict(each[1].split("=", 1) for each in exports)
    version = "from importlib import metadata; print(metadata.version('torch_npu'))"
    found = subprocess.run(
        ["python", "-c", version],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **given},
    )
    assert found.stdout == "2.10.0\n"
    assert given["PYTHONPATH"].startswith(f"{tree / 'python'}{os.pathsep}")


def test_an_archive_lasts_as_long_as_the_command(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    done = simulate(wheel, "--", "python", "-c", "import sglang.version; print(sglang.__file__)")
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
    done = simulate(wheel)
    assert done.returncode == 2
    assert "is no folder" in done.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 3)],
    ids=["interrupt", "end", "hang up", "crash"],
)
def test_no_process_and_no_port_is_left(
    tree: Path, number: signal.Signals | None, code: int
) -> None:
    holding = script(tree, HOLDING)
    arguments = ["--", "python", holding, "wait" if number else "crash"]
    with subprocess.Popen(
        command(tree, *arguments), stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        if number:
            process.send_signal(number)
        # Ends when nothing has the output open any more.
        rest, _ = process.communicate(timeout=HUNG)
    assert (process.returncode, rest) == (code, "")
    socket.create_server(("127.0.0.1", port)).close()
