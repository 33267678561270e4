"""List faults that a scenario of `verify --server` must find, and those that none can."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.simulator.environment import environment
from sgl_npu_patch.verify import isolation
from sgl_npu_patch.verify.server.models import DEFAULT
from sgl_npu_patch.verify.server.run import GROUP, LAUNCH
from tests.faults.fault import NEWEST, PATHS, Fault
from tests.faults.named import FAULTS
from tests.upstream.program import ROOT, program
from tests.upstream.releases import release_tree


def _found(scenario: str, *edits: tuple[str, str, str], seam: str = "series") -> Fault:
    """Edit what no seam of ours is about, unless one is named."""
    return Fault(seam, (f"server.{scenario}",), edits)


def _info(scenario: str, old: str, new: str) -> Fault:
    return _found(scenario, ("batch_info", old, new))


PATIENCE = 300
"""How many seconds a fault may take on a busy machine."""

_BY_NAME = {
    "positions of another request": "at_once",
    "positions of the whole batch in a part of it": "at_once",
    "seeds of another request": "at_once",
    "one seed for the batch": "at_once",
    "a seeded batch sampled by the global generator": "alone_again",
    "the values of min-p forgotten": "at_once",
    "positions not handed on": "alone_again",
    "the guard of the mode inverted": "copies",
    "matmul unregistered": "copies",
    "_log_softmax unregistered": "copies",
    "torch.ops.npu not rebound": "copies",
    "the fused attention not rebound": "copies",
    "add_rms_norm not rebound": "copies",
    "a token counted when it is known and again": "penalties",
    "a retracted request's tokens forgotten": "retraction",
}
"""Faults that other checks find too, with the scenario that does."""

_SEEDS = '            "sampling_seed",\n        ]:\n'
_MERGED = f"{_SEEDS}            self_val"
_KEPT = f"{_SEEDS}            value"
_LENGTHS = "self.forward_metadata.seq_lens_cpu_int = forward_batch.seq_lens_cpu.int()"
_NEW_ONLY = """\
        if self.forward_metadata.extend_seq_lens_cpu_int is not None:
            self.forward_metadata.seq_lens_cpu_int = self.forward_metadata.extend_seq_lens_cpu_int
"""
_PREFILLED = "else forward_batch.seq_lens - 1"

SERVER: dict[str, Fault] = {
    **{n: replace(FAULTS[n], found_by=(f"server.{s}",)) for n, s in _BY_NAME.items()},
    # What a merge breaks outside our lines.
    "the mode not entered": _found(
        "copies", ("runner", "            enable_batch_invariant_mode()\n", "            pass\n")
    ),
    "a batch that is filtered keeps all seeds": _info(
        "join_and_leave", _KEPT, _KEPT.replace('            "sampling_seed",\n', "")
    ),
    "batches merged without the seeds of the second": _info(
        "join_and_leave", _MERGED, _MERGED.replace('            "sampling_seed",\n', "")
    ),
    "parameters merged in the wrong order": _info(
        "join_and_leave", "torch.cat([self_val, other_val])", "torch.cat([other_val, self_val])"
    ),
    "a merged batch without the other's min-p": _info(
        "join_and_leave",
        "self.need_min_p_sampling |= other.need_min_p_sampling",
        "self.need_min_p_sampling &= other.need_min_p_sampling",
    ),
    "the parameters of the first rows kept": _info(
        "join_and_leave",
        "setattr(self, item, value[keep_indices_device])",
        "setattr(self, item, value[: len(keep_indices)])",
    ),
    "biases merged in the wrong order": _info(
        "join_and_leave",
        "self.logit_bias, other.logit_bias, len(self), len(other), self.device",
        "other.logit_bias, self.logit_bias, len(other), len(self), self.device",
    ),
    "the position of a prefill one too low": _found(
        "retraction", ("runner", _PREFILLED, _PREFILLED.replace("- 1", "- 2"))
    ),
    "the position of the longest prompt for all": _found(
        "at_once",
        ("runner", _PREFILLED, "else forward_batch.seq_lens * 0 + forward_batch.seq_lens.max()"),
    ),
    "the length as the position of a decode step": _found(
        "retraction",
        ("runner", "                forward_batch.positions\n                if forward_batch",
         "                forward_batch.seq_lens\n                if forward_batch"),
    ),
    "prefill that ignores what is cached": _found(
        "prefix_in_cache", ("attention", _LENGTHS, f"{_LENGTHS}\n{_NEW_ONLY}")
    ),
    "chunks that ignore the one before": _found(
        "chunks", ("attention", _LENGTHS, f"{_LENGTHS}  # too\n{_NEW_ONLY}")
    ),
    "mixed chunks left on": _found(
        "mixed_chunk",
        ("launch_guards", '_MIXED_FLAGS = {"enable_mixed_chunk": False}', "_MIXED_FLAGS = {}"),
        seam="launch_guards",
    ),
}  # fmt: skip
"""Faults in `NEWEST` by name, each found by its one scenario."""

EQUIVALENT: dict[str, str] = {
    "mm unregistered": "linear layers reach matmul, and nothing else of a dense model multiplies",
    "bmm unregistered": "a dense model multiplies no batches of matrices",
    "mean.dim unregistered": "on an NPU norms are operators of torch_npu, not means",
    "the original mm inside the replacement": "linear layers reach matmul, not mm",
    "greedy rows sampled": "its filter leaves a greedy row one token to draw",
    "one path for the batch instead of for each row": (
        "both paths draw by token, and differ only at the edge of a nucleus"
    ),
    "the newest token not counted": "counted one step late, and so in every company",
    "one count for two forward passes": "on the simulated device no two passes overlap",
    "torch_npu not rebound": "a dense model calls the attention of torch.ops.npu alone",
    "seed and position exchanged": "a token still depends on nothing but its own request",
    "the wrong sum from add_rms_norm": "a wrong answer, but the same in every company",
}
"""Faults of `FAULTS` in `NEWEST` that change no answer by its company here, with the reason."""


def judge(faults: Mapping[str, Fault], *, family: str = DEFAULT) -> list[Result]:
    """Put faults into a server of `NEWEST`; a result named after each fails where it is found."""
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-faults-") as folder:
        tree = Path(folder) / NEWEST
        shutil.copytree(release_tree(NEWEST), tree)
        if (done := program("apply", tree)).code:
            raise RuntimeError(done.stderr)
        texts = dict(_texts(tree))
        asked = {
            name: {
                "check": min(fault.ids),
                "files": {_module(p): data.decode() for p, data in fault.files(texts).items()},
            }
            for name, fault in faults.items()
        }
        return isolation.run(
            [GROUP],
            {"family": family, "faults": asked},
            seconds=len(faults) * PATIENCE,
            program="tests.faults.serving",
            variables={**environment([tree, ROOT]), **LAUNCH},
        )


def _texts(tree: Path) -> Iterable[tuple[PurePosixPath, str]]:
    for name in PATHS.values():
        path = PurePosixPath("sglang", name)
        yield path, (tree / path).read_text(encoding="utf-8")


def _module(path: PurePosixPath) -> str:
    return ".".join(path.with_suffix("").parts)
