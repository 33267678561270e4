"""The comparison with the unpatched tree off an NPU: what it lets pass, lists and catches."""

from __future__ import annotations

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify import off_npu
from sgl_npu_patch.verify.static.judged import judge
from tests.helpers import COMMON, OPS, SAMPLER, SERVER_ARGS
from tests.upstream.releases import release_tree
from tests.upstream.trees import patched_tree, sampled
from tests.verify.checked import (
    comparison,
    edited,
    failures,
    memory,
    original,
    patch,
    patched,
)

NOWHERE_ELSE = off_npu.NOWHERE_ELSE


def test_a_patched_package_differs_by_design_only() -> None:
    results = comparison(patched(), original())
    assert {name: r.verdict for name, r in results.items()} == {
        **dict.fromkeys((f"{seam}.unchanged_off_npu" for seam in SERIES), "pass"),
        NOWHERE_ELSE: "pass",
    }
    told = {name.partition(".")[0]: result.message for name, result in results.items()}
    assert 'DETERMINISTIC_ATTENTION_BACKEND_CHOICES has "ascend"' in told["backend_lists"]
    assert "self.sampling_backend != 'ascend' is true without" in told["sampling_backend"]
    assert "sampling_backend !=" not in told["launch_guards"]
    assert "is_npu is imported from sglang.srt.utils.common" in told["batch_invariant"]
    assert "npu_ops.py is added" in told["npu_ops"]
    assert "CANN' stands without effect no more" in told["attention_comment"]
    sampler = told["sampler"]
    assert "Sampler.forward passes positions to _forward_ascend_backend" in sampler
    assert "torch.compile is told disable=is_npu()" in sampler
    assert (
        "Sampler._sample_from_logits runs on the Ascend path only: called by "
        "Sampler._forward_ascend_backend only, itself called by Sampler.forward only, "
        "under self.use_ascend_backend"
    ) in sampler
    assert told["device_dispatch"] == off_npu.MEANING


def test_what_passes_a_parameter_may_stand_in_another_file_than_what_takes_it() -> None:
    sources = original()
    text = sources[SAMPLER].decode()
    start = text.index("    def _forward_ascend_backend")
    end = text.index("\n\n\n", start)
    sources["srt/layers/base.py"] = f"import torch\n\n\nclass Base:\n{text[start:end]}\n".encode()
    moved = f"{text[:start].rstrip()}{text[end:]}".replace("(torch.nn.Module)", "(Base)")
    sources[SAMPLER] = f"from sglang.srt.layers.base import Base\n{moved}".encode()
    results = comparison(patch(sources), sources)
    assert results["sampler.unchanged_off_npu"].verdict == "pass"


@pytest.mark.parametrize(
    "version",
    sampled(
        ("0.5.3.post2", "0.5.9", "0.5.12.post1", "0.5.16", "0.5.18", "0.5.23"),
        ("0.5.3.post2", "0.5.12.post1", "0.5.23"),
    ),
)
def test_a_patched_release_differs_by_design_only(version: str) -> None:
    trees = (patched_tree(version), release_tree(version))
    tree, base = (judge(open_directory(path, PROJECT)) for path in trees)
    verdicts = {r.id: r.verdict for r in off_npu.check(tree, base)}
    assert "fail" not in verdicts.values()
    for seam in ("batch_invariant", *(name for name, seam in SERIES.items() if seam.vendors)):
        assert verdicts[f"{seam}.{off_npu.CHECK}"] == "pass"


def test_an_unpatched_native_release_carries_nothing_of_ours() -> None:
    tree = judge(open_directory(release_tree("0.5.23"), PROJECT))
    verdicts = {r.id: r.verdict for r in off_npu.check(tree, tree)}
    assert verdicts[f"npu_ops.{off_npu.CHECK}"] == "not-applicable"
    assert "pass" not in {verdicts[f"{seam}.{off_npu.CHECK}"] for seam in ("backend_lists",)}


@pytest.mark.parametrize(
    ("path", "old", "new", "failed"),
    [
        (
            COMMON,
            'elif is_npu():\n        key = "NPU"',
            'elif is_xpu():\n        key = "NPU"',
            "device_dispatch",
        ),
        (
            COMMON,
            'if is_cuda_alike():\n        key = "CUDA"',
            'if is_npu():\n        key = "NPU"',
            "device_dispatch",
        ),
        (OPS, "    if _MODE and is_npu():\n", "    if _MODE:\n", "batch_invariant"),
        (OPS, "    if _MODE and is_npu():\n", "    if _MODE or is_npu():\n", "batch_invariant"),
        (OPS, "    if enable_bmm:\n", "    if not enable_bmm:\n", "batch_invariant"),
        (OPS, "    _MODE = False\n    _LIB = None\n", "    _LIB = None\n", "batch_invariant"),
        (SAMPLER, "dynamic=True, disable", "dynamic=False, disable", "sampler"),
        (SAMPLER, "disable=is_npu()", "disable=True", "sampler"),
        (SAMPLER, "is_compiling() and is_npu()", "is_compiling()", "sampler"),
        (SAMPLER, "ids, logprobs = draw_elsewhere", "logprobs, ids = draw_elsewhere", "sampler"),
        (SERVER_ARGS, '["flashinfer", "fa3",', '["fa3", "flashinfer",', "backend_lists"),
        (
            SERVER_ARGS,
            '"triton", "ascend"]\n\nR',
            '"triton", "ascend", "ascend"]\n\nR',
            "backend_lists",
        ),
        (SERVER_ARGS, "            if is_npu():\n", "            if True:\n", "launch_guards"),
        (
            SERVER_ARGS,
            'self.sampling_backend != "ascend"',
            'self.sampling_backend != "pytorch"',
            "sampling_backend",
        ),
        (SERVER_ARGS, "self.disable_radix_cache = True", "self.disable_radix_cache = False", "?"),
    ],
)
def test_what_runs_off_an_npu_must_not_change(path: str, old: str, new: str, failed: str) -> None:
    results = comparison(edited(path, (old, new)), original())
    seams = [name.partition(".")[0] for name in failures(results)]
    assert seams
    assert failed in (seams[0], "?"), seams
    for name in failures(results):
        assert results[name].code.startswith("--- unpatched")
        assert results[name].site is not None


def test_a_difference_where_no_seam_edits() -> None:
    sources = edited(SERVER_ARGS, ("import os\n", "import os\nimport sys\n"))
    results = comparison(sources, original())
    assert failures(results) == [NOWHERE_ELSE]
    assert "+import sys" in results[NOWHERE_ELSE].code


def test_other_files_are_out_of_scope() -> None:
    sources = patched() | {"srt/other.py": b"x = 1\n"}
    assert failures(comparison(sources, original())) == []


def test_ascend_path_reached_otherwise() -> None:
    """Draws by seed are left out only where nothing but the Ascend path can reach them."""
    guard = "        if self.use_ascend_backend:\n"
    for edit in (
        (guard, "        if self.use_ascend_backend or True:\n"),
        ('sampling_backend == "ascend"', 'sampling_backend != "flashinfer"'),
    ):
        results = comparison(edited(SAMPLER, edit), original())
        result = results["sampler.unchanged_off_npu"]
        assert result.verdict == "fail"
        assert "sampling_seed is not None" in result.code or "use_ascend" in result.code


def test_predicates_in_other_forms() -> None:
    """Both versions are folded, whichever way the tree asks for the device."""
    base = original()
    asked = "\n_is_npu = is_npu()\nkey = torch.sum if not is_npu() else None\n"
    base[COMMON] += asked.encode()
    sources = edited(COMMON, ("    elif is_npu():\n", "    elif _is_npu and is_xpu():\n"))
    sources[COMMON] += asked.replace("torch.sum if not is_npu() else None", "torch.sum").encode()
    assert failures(comparison(sources, base)) == []


def test_selection() -> None:
    tree, base = (judge(memory(sources)) for sources in (patched(), original()))
    assert [r.id for r in off_npu.check(tree, base, ["sampler"])] == ["sampler.unchanged_off_npu"]
    assert [r.id for r in off_npu.check(tree, base, [NOWHERE_ELSE])] == [NOWHERE_ELSE]
