"""What `audit` finds on real releases: omissions put there, a reviewed sample, what layers show."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from sgl_npu_patch.audit import scan
from sgl_npu_patch.audit.run import audit
from sgl_npu_patch.audit.scan import Call
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.directory import SourceTree, open_directory
from sgl_npu_patch.verify.behaviour import declared
from tests.audit.seeds import SEEDS, Seed
from tests.helpers import ROOT, MemoryTree
from tests.upstream.program import program
from tests.upstream.releases import RELEASES_NATIVE, RELEASES_PATCHED, release_tree
from tests.upstream.trees import patched_tree, sampled

RELEASE = "0.5.12.post1"
SAMPLE = tomllib.loads(Path(__file__).with_name("audit_sample.toml").read_text())["finding"]
MODE = (b"def enable_batch_invariant_mode", b"HCCL_DETERMINISTIC", b"_batch_invariant(")
ADDED = "srt/launch.py", b"enable_deterministic_inference = True\n"


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    # Syntax trees are large; the program switches it off too.
    gc.disable()
    yield
    gc.enable()


def findings(tree: SourceTree) -> Counter[tuple[str, str]]:
    return Counter(
        (call.site.path.relative_to(tree.package).as_posix(), call.name)
        for call in audit(tree).findings
    )


def few_files(names: tuple[str, ...]) -> dict[PurePosixPath, bytes]:
    package = patched_tree(RELEASE) / "sglang"
    files = {ROOT / name: (package / name).read_bytes() for name in names}
    return files | {ROOT / ADDED[0]: ADDED[1]}


@cache
def before(names: tuple[str, ...]) -> Counter[tuple[str, str]]:
    return findings(MemoryTree(few_files(names)))


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_an_omission_is_found(seed: Seed) -> None:
    files = few_files(seed.files)
    files[ROOT / seed.path] = seed.edit(files[ROOT / seed.path])
    new = findings(MemoryTree(files)) - before(seed.files)
    assert new[seed.at or seed.path, seed.operator] > 0


def test_there_are_enough_omissions() -> None:
    assert len(SEEDS) >= 50


@pytest.mark.parametrize("version", sampled((*RELEASES_PATCHED, *RELEASES_NATIVE)))
def test_the_reviewed_findings_are_still_reported(version: str) -> None:
    listed = {
        (each["path"], each["symbol"], each["operator"])
        for each in SAMPLE
        if each["release"] == version
    }
    assert listed
    tree = open_directory(release_tree(version), PROJECT)
    paths = {tree.package / path for path, _, _ in listed}
    paths |= {path for needle in MODE for path in tree.containing(needle)}
    paths |= set(tree.containing(b"class AscendAttnBackend("))
    files = {path: tree.read(path) or b"" for path in paths}
    few = MemoryTree({**files, tree.package / ADDED[0]: ADDED[1]}, package=tree.package)
    found = {
        (call.site.path.relative_to(tree.package).as_posix(), call.site.symbol, call.name)
        for call in audit(few).findings
    }
    assert listed <= found


@pytest.mark.slow
def test_what_is_left_out_of_files_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = open_directory(release_tree(RELEASE), PROJECT)
    calls = audit(tree).calls
    parts = scan._files

    def whole(*arguments: Any) -> dict[PurePosixPath, tuple[bytes, ...]]:
        return dict.fromkeys(parts(*arguments), ())

    monkeypatch.setattr(scan, "_files", whole)
    assert audit(tree).calls == calls


def test_at_most_one_in_twenty_of_the_reviewed_findings_is_a_false_alarm() -> None:
    verdicts = Counter(each["verdict"] for each in SAMPLE)
    assert set(verdicts) <= {"true", "false alarm"}
    assert verdicts.total() >= 100
    assert verdicts["false alarm"] * 20 <= verdicts.total()
    assert {each["release"] for each in SAMPLE} == {*RELEASES_PATCHED, *RELEASES_NATIVE}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "tree_of"),
    [(RELEASE, patched_tree), ("0.5.23", release_tree), ("0.5.23", patched_tree)],
)
def test_it_agrees_with_what_layers_show(version: str, tree_of: Callable[[str], Path]) -> None:
    tree = tree_of(version)
    only = [option for each in declared("layers") for option in ("--only", each.id)]
    report = program("verify", tree, "--layers", *only, "--format", "json").report
    layers = [each for each in report["checks"] if each["kind"] == "layers"]
    calls = audit(open_directory(tree, PROJECT)).calls
    shown = [pair for each in layers for pair in _native(each)]
    assert len(shown) > 5
    for operator, place in shown:
        assert [c for c in _at(calls, operator, place) if not c.covered], (operator, place)
    # What one layer shows native is so where another namespace of it is called.
    natives = {operator.rpartition(".")[2] for operator, _ in shown}
    replaced = {name for each in layers for name in _replaced(each)}
    assert "torch_npu.npu_add_rms_norm" in replaced or "torch_npu.add_rms_norm" in replaced
    found = {call.name for call in calls if not call.covered and call.kind == "operator"}
    assert not {n for n in found & replaced if n.rpartition(".")[2] not in natives}
    linear = {each["id"]: each["verdict"] == "pass" for each in layers}
    for name, check in (("", "linear"), (" with bias", "linear_with_bias")):
        for call in calls:
            if call.name == f"torch.nn.functional.linear{name}" and _is_linear_layer(call):
                assert call.covered is linear[f"batch_invariant.{check}"]


def _is_linear_layer(call: Call) -> bool:
    return call.site.symbol == "UnquantizedLinearMethod.apply"


def _native(check: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Give the native operators that a layer ran, with the lines that called them."""
    message = str(check["message"])
    for part in re.findall(r"native: ([^;]*)", message):
        yield from re.findall(r"([\w.]+) \(([\w/.]+:\d+)\)", part)
    if check["verdict"] == "fail":
        yield from re.findall(r"(?:aten|npu)::(\w+) at ([\w/.]+:\d+)", message)


def _replaced(check: dict[str, object]) -> Iterator[str]:
    for part in re.findall(r"replaced: ([^;]*)", str(check["message"])):
        for name in part.split(", "):
            yield name if name.startswith("torch.") else f"torch_npu.{name}"


def _at(calls: tuple[Call, ...], operator: str, place: str) -> list[Call]:
    """List the calls on a line; aten's own names are those of what runs below."""
    path, _, line = place.rpartition(":")
    name = operator.rpartition(".")[2]
    return [
        call
        for call in calls
        if call.site.path.as_posix().endswith(path)
        and abs(call.site.line - int(line)) <= 3
        and (name in call.name or name in _ATEN.get(call.name.partition(" ")[0], ()))
    ]


_ATEN = {
    "torch.nn.functional.linear": ("mm", "matmul", "addmm"),
    "torch.matmul": ("mm", "matmul"),
    "torch.einsum": ("bmm",),
}
