"""Judge one seam on a small package that a test writes itself.

    check_applied("backend_lists", {SERVER_ARGS: before}, {SERVER_ARGS: after})

The given files stand in for those of `package()`, a minimal but complete SGLang that needs every
seam, so that a test spells out its own part only.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import libcst as cst

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import SETTLED, Outcome
from sgl_npu_patch.engine.plan import Plan, make_plan, prove
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.reports.conflicts import evidence_lines

Files = Mapping[str, str | bytes | None]
"""Sources by path below the package; None takes the file away."""

ROOT = PurePosixPath("sglang")
SERVER_ARGS = "srt/server_args.py"
SAMPLER = "srt/layers/sampler.py"
OPS = "srt/batch_invariant_ops/batch_invariant_ops.py"
COMMON = "srt/utils/common.py"
ATTENTION = "srt/hardware_backend/npu/attention/ascend_backend.py"
NATIVE_OPS = f"{PROJECT.vendor_folder}/npu_batch_invariant_ops.py"


@dataclass(slots=True)
class MemoryTree:
    """Give the files of a mapping as a source tree."""

    files: Mapping[PurePosixPath, bytes]
    label: str = "memory"
    package: PurePosixPath = ROOT
    revision: str | None = None
    project: Project = PROJECT

    def copies(self) -> tuple[PurePosixPath, ...]:
        """Give none; see `SourceTree.copies`."""
        return ()

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the Python files; see `SourceTree.containing`."""
        names = self.files if among is None else among
        return tuple(
            sorted(n for n in names if n.suffix == ".py" and needle in self.files.get(n, b""))
        )

    def read(self, path: PurePosixPath) -> bytes | None:
        """Give a file's bytes; see `SourceTree.read`."""
        return self.files.get(path)


def package(changes: Files | None = None) -> dict[str, bytes]:
    """Give the files of a package that needs every seam, some of them exchanged."""
    sources: dict[str, str | bytes | None] = {
        "__init__.py": "",
        SERVER_ARGS: server_args(),
        SAMPLER: sampler(),
        OPS: batch_invariant_ops(),
        COMMON: common(),
        ATTENTION: attention(),
        "srt/launch.py": "def starts(args):\n    return args.enable_deterministic_inference\n",
        **(changes or {}),
    }
    return {
        name: text.encode() if isinstance(text, str) else text
        for name, text in sources.items()
        if text is not None
    }


def server_args(
    *,
    imports: str = "from sglang.srt.utils.common import is_npu\n",
    choices: str = 'DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["flashinfer", "fa3", "triton"]\n',
    radix: str = 'RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3", "triton"]\n',
    handler: str = "",
) -> str:
    """Give a `server_args.py`: the two lists, and the handler as a method."""
    method = textwrap.indent(handler or HANDLER, "    ", lambda line: bool(line.strip()))
    return (
        f"import logging\nimport os\n\n{imports}\nlogger = logging.getLogger(__name__)\n\n"
        f"{choices}\n{radix}\n\nclass ServerArgs:\n"
        f"    enable_deterministic_inference: bool = False\n\n{method}"
    )


HANDLER = """\
def _handle_deterministic_inference(self):
    if self.enable_deterministic_inference:
        # Which sampler
        self.sampling_backend = "pytorch"
        logger.warning("the sampler is pytorch's now")

        if self.attention_backend not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
            raise ValueError(self.attention_backend)

        if self.attention_backend not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND:
            self.disable_radix_cache = True

        if self.tp_size > 1:
            os.environ["NCCL_ALGO"] = "tree"
"""

REFUSAL = """\
        if self.deepseek:
            if self.attention_backend not in ["fa3"]:
                raise ValueError(self.attention_backend)
"""
"""What the handler has of its own for DeepSeek models from 0.5.13 to 0.5.15.post1."""


def declaring(handler: str) -> str:
    """Give a handler that reads arguments through a view, and declares changes (0.5.19 ..)."""
    head, body = handler.split("\n", 1)
    body = body.replace("self.", "cfg.")
    body = re.sub(r"cfg\.(\w+) = (.*)", r'declare_resolution(self, "handler", \1=\2)', body)
    return f"{head}\n    cfg = resolving_view(self)\n{body}"


SAMPLER_HEAD = """\
from typing import Optional

import torch

from sglang.srt.layers.hashing import noise_bits
from sglang.srt.utils.common import is_npu

if is_npu():
    import torch_npu
"""

SAMPLER_CLASS = """\
class Sampler(torch.nn.Module):
    def forward(self, out, info, return_logprob, positions):
        logits = out.logits
        simple = not info.filters
        if self.use_ascend_backend:
            ids, logprobs = self._forward_ascend_backend(
                logits, info, simple, return_logprob
            )
        else:
            ids, logprobs = draw_elsewhere(logits, info), None
        return ids, logprobs

    def _sample_from_logits(
        self,
        logits: torch.Tensor,
        info,
        simple: bool,
    ) -> torch.Tensor:
        if simple:
            probs = torch.softmax(logits, dim=-1)
            ids = torch.multinomial(probs, num_samples=1).view(-1)
            return ids.to(torch.int32)
        else:
            ids = top_k_top_p_min_p_sampling_from_logits_ascend(
                logits,
                info.top_ks,
                info.top_ps,
                info.min_ps,
                info.need_min_p_sampling,
            )
            return ids.to(torch.int32)

    def _forward_ascend_backend(self, logits, info, simple, return_logprob):
        logits.div_(info.temperatures)
        ids = self._sample_from_logits(logits, info, simple)
        return ids, torch.log_softmax(logits, dim=-1) if return_logprob else None
"""

SAMPLER_FILTERED = """\
def top_k_top_p_min_p_sampling_from_logits_ascend(
    logits: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
):
    if hasattr(torch_npu, "npu_top_k_top_p") and torch.all(top_ks <= 1024):
        fused = torch_npu.npu_top_k_top_p(logits, top_ps, top_ks)
        kept = fused.softmax(dim=-1)
        if need_min_p_sampling:
            floor = kept.max(dim=-1) * min_ps
            kept.masked_fill_(kept < floor.view(-1, 1), 0.0)
        ids = torch.multinomial(kept, num_samples=1)
    else:
        probs = torch.softmax(logits, dim=-1)
        ranked, order = probs.sort(dim=-1, descending=True)
        total = torch.cumsum(ranked, dim=-1)
        ranked.masked_fill_(total - ranked > top_ps.view(-1, 1), 0.0)
        rank = torch.multinomial(ranked, num_samples=1)
        ids = torch.gather(order, dim=1, index=rank)
    return ids.view(-1)
"""

SAMPLER_DRAW = """\
@torch.compile(dynamic=True)
def multinomial_with_seed(logprobs, seed, positions):
    columns = torch.arange(logprobs.shape[1], device=logprobs.device)
    bits = noise_bits(seed, positions, columns)
    u = bits.to(torch.float64) / torch.iinfo(torch.uint32).max
    u.log_().neg_()
    u.log_().neg_()
    u.add_(logprobs.to(torch.float64))
    return torch.argmax(u, dim=1, keepdim=True)
"""


def sampler(
    *,
    head: str = SAMPLER_HEAD,
    body: str = SAMPLER_CLASS,
    filtered: str = SAMPLER_FILTERED,
    draw: str = SAMPLER_DRAW,
) -> str:
    """Give a `sampler.py` of the shape that 0.5.9 to 0.5.12.post1 have."""
    return "\n\n".join((head, body, filtered, draw))


NATIVE_CLASS = """\
class Sampler(torch.nn.Module):
    def forward(self, out, info, return_logprob, positions):
        logits = out.logits
        simple = not info.filters
        if self.use_ascend_backend:
            ids, logprobs = self._forward_ascend_backend(
                logits, info, simple, return_logprob, positions
            )
        else:
            ids, logprobs = draw_elsewhere(logits, info), None
        return ids, logprobs

    def _sample_from_logits(
        self,
        logits: torch.Tensor,
        info,
        simple: bool,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        if simple:
            probs = torch.softmax(logits, dim=-1)
            if info.sampling_seed is not None:
                logs = probs.to(torch.float64).log_()
                ids = multinomial_with_seed(logs, info.sampling_seed, positions).view(-1)
            else:
                ids = torch.multinomial(probs, num_samples=1).view(-1)
            return ids.to(torch.int32)
        else:
            ids = top_k_top_p_min_p_sampling_from_logits_ascend(
                logits,
                info.top_ks,
                info.top_ps,
                info.min_ps,
                info.need_min_p_sampling,
                info.sampling_seed,
                positions,
            )
            return ids.to(torch.int32)

    def _forward_ascend_backend(self, logits, info, simple, return_logprob, positions):
        logits.div_(info.temperatures)
        ids = self._sample_from_logits(logits, info, simple, positions)
        return ids, torch.log_softmax(logits, dim=-1) if return_logprob else None
"""

NATIVE_FILTERED = """\
def top_k_top_p_min_p_sampling_from_logits_ascend(
    logits: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: Optional[torch.Tensor],
    positions: torch.Tensor,
):
    if hasattr(torch_npu, "npu_top_k_top_p") and torch.all(top_ks <= 1024):
        fused = torch_npu.npu_top_k_top_p(logits, top_ps, top_ks)
        kept = fused.softmax(dim=-1)
        if need_min_p_sampling:
            floor = kept.max(dim=-1) * min_ps
            kept.masked_fill_(kept < floor.view(-1, 1), 0.0)
        if sampling_seed is None:
            ids = torch.multinomial(kept, num_samples=1)
        else:
            logs = kept.to(torch.float64)
            del kept
            logs.log_()
            ids = multinomial_with_seed(logs, sampling_seed, positions)
    else:
        probs = torch.softmax(logits, dim=-1)
        ranked, order = probs.sort(dim=-1, descending=True)
        total = torch.cumsum(ranked, dim=-1)
        ranked.masked_fill_(total - ranked > top_ps.view(-1, 1), 0.0)
        if sampling_seed is None:
            rank = torch.multinomial(ranked, num_samples=1)
        else:
            logs = ranked.to(torch.float64)
            del ranked
            logs.log_()
            rank = multinomial_with_seed(logs, sampling_seed, positions)
        ids = torch.gather(order, dim=1, index=rank)
    return ids.view(-1)
"""

NATIVE_DRAW = SAMPLER_DRAW.replace("dynamic=True", "dynamic=True, disable=is_npu()")

BATCH_INFO = "srt/sampling/sampling_batch_info.py"


def native_sampler(
    *,
    body: str = NATIVE_CLASS,
    filtered: str = NATIVE_FILTERED,
    draw: str = NATIVE_DRAW,
) -> Files:
    """Give a `sampler.py` of the shape that 0.5.13 .. 0.5.17 have."""
    return {SAMPLER: sampler(body=body, filtered=filtered, draw=draw)}


def flagged_sampler(
    *,
    body: str = NATIVE_CLASS.replace(
        "                positions,\n            )\n            return",
        "                positions,\n                fusable_batch=info.fusable_batch,\n"
        "            )\n            return",
    ),
    filtered: str = NATIVE_FILTERED.replace("torch.all(top_ks <= 1024)", "fusable_batch").replace(
        "positions: torch.Tensor,\n", "positions: torch.Tensor,\n    fusable_batch: bool = False,\n"
    ),
    flag: str = "all(1 <= r.params.top_k <= 1024 for r in batch.reqs)",
) -> Files:
    """Give the files from 0.5.21 on, where a flag of the batch chooses the path."""
    info = (
        "class SamplingBatchInfo:\n    @classmethod\n"
        "    def from_schedule_batch(cls, batch):\n"
        f"        return cls(temperatures=batch.temperatures, fusable_batch={flag})\n"
    )
    return {**native_sampler(body=body, filtered=filtered), BATCH_INFO: info}


def old_sampler(*, path: bool) -> str:
    """Give a `sampler.py` as before 0.5.9, with the Ascend path from probabilities or with none."""
    ascend = (
        '        elif self.backend == "ascend":\n'
        "            return top_k_top_p_min_p_sampling_from_probs_ascend(probs)\n"
    )
    return (
        "import torch\n\n\nclass Sampler:\n    def forward(self, probs, info):\n"
        '        if self.backend == "flashinfer":\n            return fused(probs)\n'
        '        elif self.backend == "pytorch":\n'
        "            return multinomial_with_seed(probs, info.sampling_seed)\n"
        + (ascend if path else "")
        + "\n\ndef multinomial_with_seed(inputs, seed):\n"
        "    return torch.argmax(torch.log(inputs + 1e-9) + noise(seed), dim=1)\n"
        + (
            "\n\ndef top_k_top_p_min_p_sampling_from_probs_ascend(probs):\n"
            "    return torch.multinomial(probs, num_samples=1)\n"
            if path
            else ""
        )
    )


OPS_HEAD = """\
import contextlib

import torch

from sglang.srt.utils.common import get_dispatch_device_backend

_MODE = False
_LIB = None
_bmm = None
"""

OPS_ENABLE = """\
def enable_batch_invariant_mode(enable_bmm: bool = True):
    global _MODE, _LIB, _bmm
    if _MODE:
        return

    key = get_dispatch_device_backend()

    _MODE = True
    _LIB = torch.library.Library("aten", "IMPL")
    _LIB.impl("aten::mm", triton_mm, key)
    if enable_bmm:
        _bmm = torch.bmm
        torch.bmm = triton_bmm
"""

OPS_DISABLE = """\
def disable_batch_invariant_mode():
    global _MODE, _LIB, _bmm
    if _LIB is not None:
        _LIB._destroy()
    if _bmm is not None:
        torch.bmm, _bmm = _bmm, None
    _MODE = False
    _LIB = None
"""

OPS_SCOPED = """\
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
"""


def batch_invariant_ops(
    *,
    head: str = OPS_HEAD,
    enable: str = OPS_ENABLE,
    disable: str = OPS_DISABLE,
    scoped: str = OPS_SCOPED,
) -> str:
    """Give a `batch_invariant_ops.py` of the shape that 0.5.11 and 0.5.12 have."""
    return "\n\n".join((head, enable, disable, scoped))


UPSTREAM_OPS = "sglang.srt.hardware_backend.npu.batch_invariant_ops.npu_batch_invariant_ops"
_NATIVE_HEAD = (
    OPS_HEAD.replace("import get_dis", "import is_npu, get_dis")
    + "_is_npu = is_npu()\nif _is_npu:\n    import torch_npu\n"
)
NATIVE_BRANCH = f"""\
    else:
        from {UPSTREAM_OPS} import (
            npu_attention,
            npu_mm,
        )

        _LIB.impl("aten::mm", npu_mm, key)
        torch.ops.npu.npu_fused_infer_attention_score = npu_attention
        torch_npu.npu_add_rms_norm = npu_attention
"""
_CUDA_SET = OPS_ENABLE[OPS_ENABLE.index("    _LIB.impl(") :]
NATIVE_ENABLE = OPS_ENABLE.replace(
    _CUDA_SET,
    "    if not _is_npu:\n"
    + "".join(f"    {line}\n" for line in _CUDA_SET.splitlines())
    + NATIVE_BRANCH,
)


def native_ops(
    enable: str = NATIVE_ENABLE, disable: str = OPS_DISABLE, scoped: str = OPS_SCOPED
) -> Files:
    """Give the files of upstream's own adaptation, of the shape that 0.5.13 .. 0.5.23 have."""
    ops = batch_invariant_ops(head=_NATIVE_HEAD, enable=enable, disable=disable, scoped=scoped)
    return {OPS: ops, NATIVE_OPS: "def npu_mm(a, b):\n    return a @ b\n"}


DISPATCH = """\
def get_dispatch_device_backend():
    if is_cuda_alike():
        key = "CUDA"
    elif is_xpu():
        key = "XPU"
    else:
        raise RuntimeError("no accelerator")
    return key
"""


def common(dispatch: str = DISPATCH) -> str:
    """Give a `utils/common.py` that knows what device there is."""
    return (
        'import torch\n\n\ndef is_npu():\n    return hasattr(torch, "npu")\n\n\n'
        "def is_cuda_alike():\n    return torch.cuda.is_available()\n\n\n"
        f"def is_xpu():\n    return torch.xpu.is_available()\n\n\n{dispatch}"
    )


PAGED_BRANCH = '''\
"""FIA supports multi-bs in the current version of CANN"""
out, _ = torch_npu.npu_fused_infer_attention_score(q, block_table=self.tables)
'''

LOOPING_BRANCH = '''\
"""FIA will support multi-bs in the later version of CANN"""
done = 0
for length in batch.extend_seq_lens_cpu:
    out[done], _ = torch.ops.npu.npu_fused_infer_attention_score(q[done], k[done])
    done += length
'''


def attention(branch: str = PAGED_BRANCH, *, before: str = "") -> str:
    """Give an `ascend_backend.py` with that body of the fused prefill branch.

    Args:
        before: statements in front of the branch, in the part for models without MLA.
    """
    return (
        "import torch\nimport torch_npu\n\n\nclass AscendAttnBackend:\n"
        "    def forward_extend(self, q, k, batch, sinks=None):\n"
        "        if not self.use_mla:\n"
        + textwrap.indent(before, " " * 12)
        + "            if self.use_fia:\n"
        + textwrap.indent(branch, " " * 16)
        + "            else:\n                out = slow(q, k)\n"
        "        else:\n            if self.use_fia:\n                out = fused_mla(q, k)\n"
        "        return out\n"
    )


def judge(seam: str, changes: Files | None = None) -> tuple[Outcome, Plan, dict[str, bytes]]:
    """Run one seam, without those it needs, on a package; give the files after it too."""
    return _run(seam, package(changes))


def _run(seam: str, files: Mapping[str, bytes]) -> tuple[Outcome, Plan, dict[str, bytes]]:
    tree = MemoryTree({ROOT / name: data for name, data in files.items()})
    series = {seam: replace(SERIES[seam], needs=(), needs_if_defined=())}
    plan = make_plan(tree, series)
    prove(plan)
    after = dict(files)
    for change in plan.changes.changes:
        assert change.before == tree.read(change.path)
        after[change.path.relative_to(ROOT).as_posix()] = change.after
    return plan.outcomes[0], plan, after


def check_applied(
    seam: str, before: Files, after: Mapping[str, str | bytes], *, vendored: Iterable[str] = ()
) -> Outcome:
    """Insist on an edit, byte for byte, that compiles and leaves nothing to do.

    Args:
        before: files in the place of the package's.
        after: every file that the seam changes.
        vendored: the modules of `npu_ops` that it adds.
    """
    outcome, _, files = judge(seam, before)
    assert outcome.status == "pending", outcome
    old = package(before)
    changed = {name: data for name, data in files.items() if data != old.get(name)}
    added = {f"{PROJECT.vendor_folder}/{module}.py" for module in vendored}
    expected = {name: t.encode() if isinstance(t, str) else t for name, t in after.items()}
    assert set(changed) == set(expected) | added
    for name, data in expected.items():
        want, got = (d.decode("utf-8", "replace").splitlines(True) for d in (data, changed[name]))
        assert changed[name] == data, "\n" + "".join(difflib.unified_diff(want, got, "want", "got"))
    _check_result(seam, old, files, outcome)
    return outcome


def check_edited(seam: str, before: Files, path: str, *texts: str | re.Pattern[str]) -> str:
    """Insist on an edit of one file that leaves these texts in it; give the whole file."""
    outcome, _, files = judge(seam, before)
    assert outcome.status == "pending", outcome
    _check_result(seam, package(before), files, outcome)
    result = files[path].decode()
    for text in texts:
        found = text.search(result) if isinstance(text, re.Pattern) else text in result
        assert found, result
    return result


def _check_result(
    seam: str, old: Mapping[str, bytes], new: Mapping[str, bytes], outcome: Outcome
) -> None:
    for name, data in new.items():
        if data != old.get(name):
            _compile(name, data)
            _check_sites(name, old.get(name), data, outcome)
    again, plan, files = _run(seam, new)
    assert again.status in SETTLED, again
    assert not plan.changes.changes
    assert files == new


def _compile(name: str, data: bytes) -> None:
    try:
        compile(data, name, "exec", dont_inherit=True)
    except SyntaxError:
        cst.parse_module(data)


def _check_sites(name: str, before: bytes | None, after: bytes, outcome: Outcome) -> None:
    """Every difference has a site in the file as read, and every site a difference."""
    lines = {site.line for site in outcome.sites if site.path == ROOT / name}
    if before is None:
        assert lines == {0}
        return
    old, new = (re.split(rb"\r\n|\r|\n", data) for data in (before, after))
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    hunks = [range(a, max(b, a + 1)) for tag, a, b, _, _ in opcodes if tag != "equal"]
    # An insertion of lines like those around it can be told in more than one way.
    near = [range(hunk.start - 1, hunk.stop + 2) for hunk in hunks]
    assert all(any(line in hunk for line in lines) for hunk in near), (lines, near)
    assert all(any(line in hunk for hunk in near) for line in lines), (lines, near)


def check_already(seam: str, changes: Files) -> Outcome:
    """Insist that the tree carries our change: nothing is written."""
    return _check_settled(seam, changes, "already")


def check_upstream(seam: str, changes: Files, *, gaps: tuple[str, ...] = ()) -> Outcome:
    """Insist that the tree does it natively, with these gaps."""
    outcome = _check_settled(seam, changes, "upstream")
    assert outcome.gaps == gaps
    return outcome


def check_not_needed(seam: str, changes: Files, *, match: str) -> Outcome:
    """Insist on positive evidence that there is nothing to patch."""
    outcome = _check_settled(seam, changes, "not-needed")
    assert match in outcome.reason
    return outcome


def check_withheld(seam: str, changes: Files, *, match: str) -> Outcome:
    """Insist that the change is left out because it would be unsafe."""
    outcome = _check_settled(seam, changes, "withheld")
    assert match in outcome.reason
    return outcome


def _check_settled(seam: str, changes: Files, status: str) -> Outcome:
    outcome, plan, files = judge(seam, changes)
    assert outcome.status == status, outcome
    assert not plan.changes.changes
    assert files == package(changes)
    assert outcome.sites
    _check_places(outcome, files)
    return outcome


def check_conflict(seam: str, changes: Files, *, match: str, at: str | None = None) -> Outcome:
    """Insist on a refusal that writes nothing and shows its evidence.

    Args:
        match: text of the evidence as it is printed.
        at: text of the line that the first place points at; None where a whole file is meant.
    """
    outcome, plan, files = judge(seam, changes)
    assert outcome.status == "conflict", outcome
    assert not plan.changes.changes
    evidence = outcome.evidence
    assert evidence is not None
    assert evidence.sought
    assert evidence.expected
    assert evidence.found
    assert evidence.action
    lines = evidence_lines(evidence)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    printed = " ".join(" ".join(lines).split())
    assert match in printed, printed
    _check_places(outcome, files)
    if at is not None:
        site = evidence.where[0]
        text = files[site.path.relative_to(ROOT).as_posix()].decode("latin-1")
        assert site.line, site
        assert at in re.split(r"\r\n|\r|\n", text)[site.line - 1], site
    return outcome


def _check_places(outcome: Outcome, files: Mapping[str, bytes]) -> None:
    for site in outcome.sites:
        data = files.get(site.path.relative_to(ROOT).as_posix())
        assert data is not None, site
        assert site.line <= len(re.split(rb"\r\n|\r|\n", data)), site


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """Give the functions of a source by name."""
    return {n.name: n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}
