"""Run the layers of real trees on the adversarial NPU, and layers that were spoilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.simulator.modules import package_folder
from sgl_npu_patch.verify import isolation
from tests.upstream.golden import read_expected
from tests.upstream.releases import release_tree
from tests.upstream.test_statuses import expected_gaps
from tests.upstream.trees import patched_tree, sampled

PATCHED = ("0.5.3rc2", "0.5.6", "0.5.9", "0.5.12.post1", "lsglang==1.3.1")
NATIVE = ("0.5.13", "0.5.23")
OFTEN = ("0.5.3rc2", "0.5.12.post1", "0.5.23")
PROMISED = {
    "batch_invariant.linear": "replaced: matmul;",
    "batch_invariant.linear_with_bias": "replaced: addmm;",
    "batch_invariant.rms_norm": "row by row: npu_rms_norm;",
    "batch_invariant.rms_norm_residual": "replaced: add_rms_norm;",
    "batch_invariant.attention_decode_fia": "replaced: npu_fused_infer_attention_score;",
    "batch_invariant.attention_prefill_fia": "replaced: npu_fused_infer_attention_score;",
}
PROMISED_SAMPLER = {
    "sampler.sampler_simple": "replaced: softmax, log_softmax;",
    "sampler.sampler_fused": "row by row: npu_top_k_top_p;",
    "sampler.sampler_sorted": "native: cumsum (srt/layers/sampler.py:",
}
NOT_PROMISED = {
    "batch_invariant.gemma_rms_norm": "npu_gemma_rms_norm (srt/layers/layernorm.py:",
    "batch_invariant.attention_decode_no_fia": "_npu_paged_attention (srt/",
    "batch_invariant.attention_prefill_no_fia": "_npu_flash_attention_qlens (srt/",
    "batch_invariant.attention_mla_fia": "_npu_paged_attention_mla (srt/",
    "batch_invariant.attention_mla_no_fia": "_npu_paged_attention_mla (srt/",
}


def results(package: Path, *only: str, left_out: dict[str, str] | None = None) -> dict[str, Result]:
    request = {
        "package": str(package),
        "base": None,
        "left_out": left_out or {},
        "native": False,
        "torch_npu": "2.10.0",
        "only": only,
    }
    return {each.id: each for each in isolation.run(["layers"], request)}


@pytest.mark.parametrize("version", sampled(PATCHED, OFTEN))
def test_what_a_patched_tree_promises_holds(version: str) -> None:
    statuses = read_expected()[version]["statuses"]
    left_out = {s: status for s, status in statuses.items() if status in ("withheld", "not-needed")}
    found = results(package_folder(patched_tree(version)), left_out=left_out)
    assert {each.kind for each in found.values()} == {"layers"}
    promised = PROMISED if "sampler" in left_out else {**PROMISED, **PROMISED_SAMPLER}
    for name, part in promised.items():
        assert found[name].verdict == "pass", found[name]
        assert part in found[name].message
        assert "unknown: none" in found[name].message
    for name, part in NOT_PROMISED.items():
        assert found[name].verdict == "not-applicable", found[name]
        assert found[name].message.startswith("not promised: ")
        assert part in found[name].message
    assert not [each for each in found.values() if each.verdict == "fail"]


@pytest.mark.parametrize("version", sampled(NATIVE, OFTEN))
def test_what_a_native_tree_leaves_open_is_named_with_its_line(version: str) -> None:
    found = results(package_folder(release_tree(version)))
    failed = {name: each for name, each in found.items() if each.verdict == "fail"}
    gaps = expected_gaps(version)
    expected = {"batch_invariant.linear_with_bias": "aten::addmm at srt/layers/quantization/"}
    if "alias_not_rebound" in gaps:
        expected["batch_invariant.attention_prefill_fia"] = (
            "npu::npu_fused_infer_attention_score at srt/hardware_backend/npu/attention/"
        )
    assert failed.keys() == expected.keys()
    for name, part in expected.items():
        assert part in failed[name].message
        assert failed[name].gap in gaps


@pytest.mark.parametrize("version", sampled(NATIVE, OFTEN))
def test_what_a_patched_native_tree_promises_holds(version: str) -> None:
    found = results(package_folder(patched_tree(version)))
    for name, part in PROMISED.items():
        assert found[name].verdict == "pass", found[name]
        assert part in found[name].message
    assert not [each for each in found.values() if each.verdict == "fail"]


UNQUANTISED = "srt/layers/quantization/unquant.py"
LAYERNORM = "srt/layers/layernorm.py"
SAMPLER = "srt/layers/sampler.py"
ATTENTION = "srt/hardware_backend/npu/attention/ascend_backend.py"
NPU_OPS = "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"
FILES = (
    UNQUANTISED,
    LAYERNORM,
    SAMPLER,
    ATTENTION,
    NPU_OPS,
    "srt/batch_invariant_ops/batch_invariant_ops.py",
    "srt/utils/common.py",
)
LINEAR = """            return tgemm.mm(x, layer.weight, bias, otype=x.dtype)

        return F.linear(x, layer.weight, bias)
"""


def spoilt(folder: Path, path: str, *edits: tuple[str, str]) -> Path:
    """Return a package of the executed files alone, some texts of one of them exchanged."""
    package = package_folder(patched_tree("0.5.12.post1"))
    for name in FILES:
        target = folder / "sglang" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / name, target)
    file = folder / "sglang" / path
    source = file.read_text()
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    file.write_text(source)
    return folder / "sglang"


def line_of(package: Path, path: str, text: str) -> int:
    lines = (package / path).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return number


FAULTS = {
    "a product in the linear layer": (
        "batch_invariant.linear",
        UNQUANTISED,
        [(LINEAR, LINEAR.rstrip() + " + x.prod(-1, keepdim=True)\n")],
        "aten::prod",
    ),
    "a running sum over the rows": (
        "batch_invariant.linear_with_bias",
        UNQUANTISED,
        [(LINEAR, LINEAR.replace("F.linear(x", "F.linear(torch.cumsum(x, -1)"))],
        "aten::cumsum",
    ),
    "the fused norm taken by value": (
        "batch_invariant.rms_norm_residual",
        LAYERNORM,
        [
            (
                "class RMSNorm(MultiPlatformOp):\n",
                "from torch_npu import npu_add_rms_norm\n\n\nclass RMSNorm(MultiPlatformOp):\n",
            ),
            ("torch_npu.npu_add_rms_norm(", "npu_add_rms_norm("),
        ],
        "npu::npu_add_rms_norm",
    ),
    "an operator taken out of the mode": (
        "batch_invariant.linear_with_bias",
        NPU_OPS,
        [('        "addmm": addmm,\n', "")],
        "aten::addmm",
    ),
    "the native attention in the mode": (
        "batch_invariant.attention_decode_fia",
        NPU_OPS,
        [("        _rebind(namespace, _ATTENTION, attention)\n", "")],
        "npu::npu_fused_infer_attention_score",
    ),
}


@pytest.mark.parametrize(
    "fault",
    sampled((*FAULTS,), ("a sum in the linear layer", "the native attention in the mode")),
)
def test_a_batch_dependent_operator_is_named_with_its_line(fault: str, tmp_path: Path) -> None:
    check, path, edits, operator = FAULTS[fault]
    package = spoilt(tmp_path, path, *edits)
    (found,) = results(package, check).values()
    assert found.verdict == "fail"
    named, _, rest = found.message.partition(" at ")
    assert named.partition(".")[0] == operator
    file, _, number = rest.partition(" ")[0].rpartition(":")
    line = (package / file).read_text().splitlines()[int(number) - 1].strip()
    assert line == found.code
    assert operator.rpartition("::")[2].strip("_") in line or "linear(x" in line


def test_an_operator_that_no_table_knows_is_no_pass(tmp_path: Path) -> None:
    unknown = LINEAR.rstrip() + " + torch.fft.rfft(x.float()).real[:, :1]\n"
    package = spoilt(tmp_path, UNQUANTISED, (LINEAR, unknown))
    (found,) = results(package, "batch_invariant.linear").values()
    assert found.verdict == "not-applicable"
    assert "not proven" in found.message
    number = line_of(package, UNQUANTISED, "torch.fft.rfft")
    assert f"fft_r2c ({UNQUANTISED}:{number})" in found.message
