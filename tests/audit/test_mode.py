from __future__ import annotations

import pytest

from sgl_npu_patch.audit.mode import read_mode
from sgl_npu_patch.audit.parsed import Parsed
from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.codemods.upstream.operators import REGISTERED
from sgl_npu_patch.engine.trees.directory import SourceTree
from tests.audit.trees import ENABLE, MODE, memory
from tests.helpers import ROOT, MemoryTree
from tests.verify.checked import original, patched

FOLDER = "srt/hardware_backend/npu/batch_invariant_ops"
BESIDE, UPSTREAMS = f"{FOLDER}/more.py", f"{FOLDER}/npu_batch_invariant_ops.py"


def replaced(tree: SourceTree) -> set[str]:
    return set(read_mode(Parsed(tree)).replaced)


def package(sources: dict[str, bytes]) -> MemoryTree:
    return MemoryTree({ROOT / name: data for name, data in sources.items()})


def test_a_patched_tree() -> None:
    attention = "npu_fused_infer_attention_score"
    assert replaced(package(patched())) == {
        "HCCL_DETERMINISTIC",
        *(f"aten::{name}" for name in REGISTERED),
        *(
            f"{namespace}.{name}"
            for namespace in ("torch.ops.npu", "torch_npu")
            for name in (attention, f"_{attention}_get_max_workspace", "npu_add_rms_norm")
        ),
    }


def test_an_unpatched_tree() -> None:
    mode = read_mode(Parsed(package(original())))
    assert mode.replaced == frozenset()
    assert mode.site is not None
    assert mode.site.symbol == "enable_batch_invariant_mode"


def test_a_native_tree_replaces_what_its_own_branch_registers_and_rebinds() -> None:
    assert replaced(memory({})) == {"aten::mm", "aten::matmul", "torch_npu.npu_add_rms_norm"}


@pytest.mark.parametrize(
    "call",
    [
        (
            "        from sglang.srt.hardware_backend.npu.batch_invariant_ops import more\n"
            "        more.close(lib)\n"
        ),
        (
            "        from sglang.srt.hardware_backend.npu.batch_invariant_ops.more import (\n"
            "            close as c,\n        )\n        c(lib)\n"
        ),
    ],
)
def test_functions_that_upstreams_branch_calls_are_followed(call: str) -> None:
    beside = (
        "NAME = 'addmm'\n\ndef close(lib):\n    lib.impl(f'aten::{NAME}', addmm, 'NPU')\n"
        "    rebind()\n\ndef rebind():\n    for space in (torch.ops.npu, torch_npu):\n"
        "        setattr(space, 'npu_other', other)\n\ndef unused(lib):\n"
        "    lib.impl('aten::sum', s, 'NPU')\n"
    )
    more = replaced(memory({MODE: ENABLE + call, BESIDE: beside})) - replaced(memory({}))
    assert more == {"aten::addmm", "torch.ops.npu.npu_other", "torch_npu.npu_other"}


def test_upstreams_replacements_are_on_the_path_only_where_they_are_reached() -> None:
    source = "import torch\n\ndef f(x):\n    return torch.sum(x)\n"
    imported = f"        from sglang.{FOLDER.replace('/', '.')}.npu_batch_invariant_ops import f\n"
    reached = memory({MODE: ENABLE + imported, UPSTREAMS: source})
    assert "torch.sum" in [call.name for call in audit(reached).findings]
    first = ENABLE.index("    if not _is_npu")
    before = ENABLE[:first] + "    if _is_npu:\n        return\n" + ENABLE[first:]
    hidden = memory({MODE: before + imported, UPSTREAMS: source})
    assert "torch.sum" not in [call.name for call in audit(hidden).findings]


def test_a_tree_without_the_mode() -> None:
    assert read_mode(Parsed(memory({MODE: ""}))).site is None
