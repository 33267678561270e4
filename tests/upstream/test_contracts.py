"""The operators that real releases call are compared with the oldest and the newest torch_npu."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify import contracts
from tests.upstream.releases import release_tree
from tests.upstream.trees import patched_tree
from tests.verify.test_contracts import NEWEST, OLDEST

RELEASE = "0.5.12.post1"
ATTENTION = "sglang/srt/hardware_backend/npu/attention/ascend_backend.py"
SAMPLER, NORMS = "sglang/srt/layers/sampler.py", "sglang/srt/layers/layernorm.py"
NPU_OPS = f"sglang/{contracts.VENDORED}"


def _page() -> ModuleType:
    script = Path(__file__).resolve().parents[2] / "docs" / "torch_npu.py"
    spec = importlib.util.spec_from_file_location("torch_npu_page", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = _page()


def failed(tree: Path, given: str) -> list[Result]:
    results = contracts.check(open_directory(tree, PROJECT), given)
    return [each for each in results if each.verdict == "fail"]


@pytest.mark.parametrize("version", ["0.5.3rc2", "0.5.6.post1", "0.5.9", RELEASE])
def test_a_patched_release_and_the_newest(version: str) -> None:
    assert failed(patched_tree(version), NEWEST) == []


def test_a_native_release_and_the_newest() -> None:
    assert failed(release_tree("0.5.23"), NEWEST) == []


def test_the_oldest_lacks_one_operator() -> None:
    found = failed(patched_tree(RELEASE), OLDEST)
    assert [each.id for each in found] == ["contract.npu_sparse_flash_attention"]
    assert str(found[0].site).startswith(f"{ATTENTION}:")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_table(version: str) -> None:
    assert PAGE.row(version, patched_tree(RELEASE)) in PAGE.PAGE.read_text(encoding="utf-8")


def test_the_table_begins_and_ends_with_what_is_tested() -> None:
    rows = [line for line in PAGE.PAGE.read_text().splitlines() if line.startswith("| 2.")]
    assert rows[0].startswith(f"| {OLDEST} |")
    assert rows[-1].startswith(f"| {NEWEST} |")


def edited(into: Path, path: str, old: str, new: str) -> Path:
    """Copy the files that call operators, one of them edited at the first place."""
    for name in (ATTENTION, SAMPLER, NORMS, NPU_OPS, "sglang/__init__.py"):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(patched_tree(RELEASE) / name, into / name)
    text = (into / path).read_text()
    assert old in text
    (into / path).write_text(text.replace(old, new, 1))
    return into


@pytest.mark.parametrize(
    ("path", "old", "new", "operator"),
    [
        (ATTENTION, "                workspace=workspace,\n                out=",
         "                work_space=workspace,\n                out=",
         "npu_fused_infer_attention_score"),
        (ATTENTION, "npu_fused_infer_attention_score.out(", "npu_fused_infer_attention_score.put(",
         "npu_fused_infer_attention_score"),
        (ATTENTION, 'input_layout="TND"', "input_layout=3", "npu_fused_infer_attention_score"),
        (ATTENTION, "torch_npu._npu_paged_attention(", "torch_npu._npu_pagd_attention(",
         "_npu_pagd_attention"),
        (NORMS, "residual, x, self.weight.data, self.variance_epsilon",
         "residual, x, self.weight.data, self.variance_epsilon, 1", "npu_add_rms_norm"),
        (NPU_OPS, "torch_npu.npu_rms_norm(total, gamma, epsilon)",
         "torch_npu.npu_rms_norm(total, gamma, eps=epsilon)", "npu_rms_norm"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_found(
    tmp_path: Path, path: str, old: str, new: str, operator: str
) -> None:
    found = failed(edited(tmp_path, path, old, new), NEWEST)
    assert [each.id for each in found] == [f"contract.{operator}"]
    assert found[0].site is not None
    assert str(found[0].site.path) == path


def test_a_wrong_value_on_one_of_two_paths_is_reported_as_unknown(tmp_path: Path) -> None:
    old = "                actual_seq_lengths = np.arange("
    tree = edited(tmp_path, ATTENTION, old, old.replace("np.arange", "len"))
    (found,) = (
        each
        for each in contracts.check(open_directory(tree, PROJECT), NEWEST)
        if each.id == "contract.npu_fused_infer_attention_score.unknown"
    )
    assert "SymInt[]? actual_seq_lengths takes no int" in found.message


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    tree = edited(tmp_path, SAMPLER, "import", "imp ort")
    ids = {each.id: each.verdict for each in contracts.check(open_directory(tree, PROJECT), NEWEST)}
    assert ids["contract.sampler.unread"] == "not-applicable"
