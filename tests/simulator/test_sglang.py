"""Check the stand-ins that the executed SGLang code is judged with."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sgl_npu_patch.codemods.upstream.modules import SAMPLER
from sgl_npu_patch.codemods.upstream.symbols import DISPATCH
from sgl_npu_patch.simulator.modules import NotInTree, find, modules_of_class
from sgl_npu_patch.simulator.murmur import murmur_hash32
from sgl_npu_patch.simulator.sglang import Execution
from sgl_npu_patch.simulator.stubs import Stub

PACKAGE = {
    "__init__.py": "",
    "srt/real.py": """
import os
import absent_package
import torch_npu
from sglang.srt.elsewhere import CONSTANT, Base, decorate

os.environ["SET_BY_SGLANG"] = "1"


@decorate
class Derived(Base):
    pass


def later():
    from sglang.srt.hardware_backend.npu.batch_invariant_ops import vendored

    return vendored.VALUE
""",
    "srt/hardware_backend/npu/batch_invariant_ops/vendored.py": "VALUE = 42\n",
}


def reference(data: bytes) -> int:
    """Hash by the published algorithm, for whole blocks, in Python's own integers."""
    mask = 2**32 - 1
    state = 0
    for (block,) in struct.iter_unpack("<I", data):
        mixed = block * 0xCC9E2D51 & mask
        mixed = (mixed << 15 | mixed >> 17) & mask
        state ^= mixed * 0x1B873593 & mask
        state = (state << 13 | state >> 19) & mask
        state = (state * 5 + 0xE6546B64) & mask
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"\x00\x00\x00\x00", 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\x21\x43\x65\x87", 0xF55B516B),
    ],
)
def test_the_reference_gives_the_published_vectors(data: bytes, expected: int) -> None:
    assert reference(data) == expected


def test_the_hash_is_that_of_seed_position_and_column() -> None:
    seeds = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**62 + 12345, 2**63 - 1]
    positions = [0, 1, 5, 131_071, 2**31 - 1, 7, 8, 9]
    columns = [0, 1, 2, 151_935, 2**20]
    hashed = murmur_hash32(
        torch.tensor(seeds).to(torch.uint64), torch.tensor(positions), torch.tensor(columns)
    )
    assert hashed.dtype == torch.uint32
    assert hashed.tolist() == [
        [reference(struct.pack("<QII", seed, position, column)) for column in columns]
        for seed, position in zip(seeds, positions, strict=True)
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, source in PACKAGE.items():
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return tmp_path


def test_an_execution_leaves_no_trace(tree: Path) -> None:
    before = dict(sys.modules)
    compiler = torch.compile
    with Execution(tree, provide={"torch_npu": {"known": 1}}) as execution:
        module = execution.load("sglang.srt.real")
        assert module.torch_npu.known == 1
        assert module.later() == 42
        assert isinstance(module.CONSTANT, Stub)
        assert torch.compile is not compiler
    with execution:
        assert sys.modules["sglang.srt.real"] is module
    assert dict(sys.modules) == before
    assert torch.compile is compiler
    assert "SET_BY_SGLANG" not in os.environ
    assert not list(tree.rglob("__pycache__"))


def test_what_was_imported_between_two_entries_is_hidden(tree: Path) -> None:
    (tree / "sglang/srt/late.py").write_text("import late_package as found\n")
    execution = Execution(tree)
    with execution:
        pass
    sys.modules["late_package"] = outside = ModuleType("late_package")
    try:
        for _ in range(2):
            with execution:
                stub = execution.load("sglang.srt.late").found
                assert stub is not outside
                assert sys.modules["late_package"] is stub
            assert sys.modules["late_package"] is outside
    finally:
        del sys.modules["late_package"]


def test_torchs_compiler_is_imported_as_if_nothing_were_entered(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of its own stands for it, which takes seconds to import."""
    (tmp_path / "_dynamo_of_a_test.py").write_text("import sys\nseen = {*sys.modules}\n")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    (tree / "sglang/srt/compiling.py").write_text("import triton, torch._dynamo_of_a_test\n")
    name = "torch._dynamo_of_a_test"
    outside = {*sys.modules}
    with Execution(tree), Execution(tree) as execution:
        module = execution.load("sglang.srt.compiling")
        seen = sys.modules.pop(name).seen
        assert seen == outside | {name}
        assert sys.modules["triton"] is module.triton
        assert sys.modules["sglang.srt.compiling"] is module
        assert torch.compile == execution._record_compile
    assert {*sys.modules} == outside
    vars(torch).pop("_dynamo_of_a_test")


def test_only_an_npu_has_torch_npu_and_only_if_provided(tree: Path) -> None:
    for device in ("npu", "cuda"):
        with Execution(tree, device) as execution, pytest.raises(ImportError, match="torch_npu"):
            execution.load("sglang.srt.real")


def test_what_the_tree_has_not_cannot_be_loaded(tree: Path) -> None:
    with Execution(tree) as execution, pytest.raises(NotInTree):
        execution.load("sglang.srt.elsewhere")


def test_a_definition_is_found_where_it_moved(tmp_path: Path) -> None:
    def module_of(tree: Path) -> str:
        found = find(tree, DISPATCH)
        return found.module if found else ""

    assert module_of(_with(tmp_path / "none", {})) == ""
    there = {"srt/utils/common.py": f"from .keys import {DISPATCH.name}\n"}
    moved = {**there, "srt/utils/keys.py": f"def {DISPATCH.name}():\n    return 'NPU'\n"}
    assert module_of(_with(tmp_path / "moved", moved)) == "sglang.srt.utils.keys"
    both = {**moved, "srt/utils/common.py": moved["srt/utils/keys.py"]}
    assert module_of(_with(tmp_path / "both", both)) == "sglang.srt.utils.common"
    del moved["srt/utils/common.py"]
    assert module_of(_with(tmp_path / "not imported", moved)) == "sglang.srt.utils.keys"


def test_the_bases_that_methods_come_from_are_found(tmp_path: Path) -> None:
    module = "sglang.srt.layers.sampler"
    sources = {
        "srt/layers/__init__.py": "",
        "srt/layers/sampler.py": (
            "from .base import Base as Above\nfrom sglang.srt.layers.other import Other\n\n\n"
            "class Sampler(Above, Other):\n    def forward(self):\n        pass\n"
        ),
        "srt/layers/base.py": "class Base:\n    def draw(self):\n        pass\n",
        "srt/layers/other.py": "class Other:\n    def forward(self):\n        pass\n",
    }
    tree = _with(tmp_path, sources)
    assert modules_of_class(tree, SAMPLER, "forward") == [module]
    assert modules_of_class(tree, SAMPLER, "forward", "draw") == [
        module,
        "sglang.srt.layers.base",
    ]


def test_a_name_is_given_wherever_it_is_imported_from(tmp_path: Path) -> None:
    sources = {
        "srt/utils/real.py": (
            "from sglang.srt.anywhere import is_npu, given\n\nSEEN = is_npu(), given\n"
        )
    }
    with Execution(_with(tmp_path, sources), "npu", names={"given": 3}) as execution:
        assert execution.load("sglang.srt.utils.real").SEEN == (True, 3)


def _with(tree: Path, sources: dict[str, str]) -> Path:
    (tree / "sglang" / "srt" / "utils").mkdir(parents=True)
    for name, source in sources.items():
        (tree / "sglang" / name).parent.mkdir(exist_ok=True)
        (tree / "sglang" / name).write_text(source)
    return tree
