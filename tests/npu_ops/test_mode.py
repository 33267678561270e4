"""Entering and leaving the mode: what is registered, rebound, given back; what is missing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sgl_npu_patch.codemods.upstream import operators
from sgl_npu_patch.simulator import device, extension
from tests.npu_ops.bits import on_npu
from tests.npu_ops.conftest import FOLDER

REBOUND = (
    "npu_fused_infer_attention_score",
    "_npu_fused_infer_attention_score_get_max_workspace",
    "npu_add_rms_norm",
)


def _attributes() -> list[dict[str, Any]]:
    """Return what both namespaces hold, operators not yet looked up left out."""
    return [dict(vars(sys.modules["torch_npu"])), dict(vars(torch.ops.npu))]


def _native(name: str = "mm") -> bool:
    """Report whether a product runs torch_npu's own kernel."""
    extension.calls.clear()
    if name == "bmm":
        torch.bmm(on_npu(2, 3, 4), on_npu(2, 4, 5))
    else:
        torch.mm(on_npu(3, 4), on_npu(4, 5))
    return not extension.calls


pytestmark = pytest.mark.usefixtures("installed_extension")


def test_the_operators_named_for_the_seams_are_those_replaced(npu_ops: Any) -> None:
    assert {*operators.REGISTERED} == {*npu_ops._aten_kernels(True)}
    npu_ops.enable()
    assert {*operators.REBOUND} == {name for _, name in npu_ops._state.originals}


def test_no_overload_of_what_is_replaced_is_left_out() -> None:
    """One of numbers instead of tensors needs nothing; torch may come to have more."""
    packets = {name.partition(".")[0] for name in operators.REGISTERED}
    for packet in packets | {f"{name}_" for name in packets if hasattr(torch.ops.aten, f"{name}_")}:
        operator = getattr(torch.ops.aten, packet)
        named = {
            packet if overload == "default" else f"{packet}.{overload}"
            for overload in operator.overloads()
            if str(getattr(operator, overload)._schema.returns[0].type) == "Tensor"
        }
        assert named <= {*operators.REGISTERED}


@pytest.mark.usefixtures("mode", "no_grad")
@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_the_dtype_of_a_product_may_be_asked_for(name: str) -> None:
    batch = [2] if name == "bmm" else []
    a, b = (on_npu(*batch, *shape, dtype=torch.bfloat16) for shape in ((3, 8), (8, 4)))
    product = getattr(torch, name)(a, b, out_dtype=torch.float32)
    assert product.dtype == torch.float32
    expected = getattr(torch, name)(device.cpu(a).float(), device.cpu(b).float())
    torch.testing.assert_close(device.cpu(product), expected)


@pytest.mark.parametrize("extension_version", ["1.0.0", "2.0.0"])
@pytest.mark.usefixtures("extension_version")
class TestLeaving:
    """`disable` gives back the very objects."""

    def test_all_attributes_are_what_they_were(self, npu_ops: Any) -> None:
        for name in REBOUND:
            getattr(torch.ops.npu, name)
        before = _attributes()
        library = npu_ops.enable()
        within = _attributes()
        for old, new in zip(before, within, strict=True):
            assert {name for name in new if new[name] is not old.get(name)} == {*REBOUND}
        npu_ops.disable()
        library._destroy()
        assert _attributes() == before

    def test_operators_that_were_never_looked_up_are_not_left_behind(self, npu_ops: Any) -> None:
        for name in REBOUND:
            vars(torch.ops.npu).pop(name, None)
        npu_ops.enable()
        npu_ops.disable()
        assert not {*REBOUND} & vars(torch.ops.npu).keys()
        assert str(torch.ops.npu.npu_add_rms_norm.default) == "npu.npu_add_rms_norm.default"

    def test_a_wrapper_that_torch_npu_put_there_comes_back(
        self, npu_ops: Any, fake_torch_npu: Any
    ) -> None:
        def wrapper(*args: Any) -> None: ...

        fake_torch_npu.npu_add_rms_norm = wrapper
        vars(torch.ops.npu)["npu_fused_infer_attention_score"] = wrapper
        for _ in range(2):
            npu_ops.enable()
            assert fake_torch_npu.npu_add_rms_norm is not wrapper
            npu_ops.disable()
            assert fake_torch_npu.npu_add_rms_norm is wrapper
            assert torch.ops.npu.npu_fused_infer_attention_score is wrapper

    def test_disabling_again_does_nothing(self, npu_ops: Any, fake_torch_npu: Any) -> None:
        npu_ops.disable()
        npu_ops.enable()
        npu_ops.disable()
        before = _attributes()
        fake_torch_npu.npu_add_rms_norm = mine = object()
        npu_ops.disable()
        assert fake_torch_npu.npu_add_rms_norm is mine
        before[0]["npu_add_rms_norm"] = mine
        assert _attributes() == before

    def test_the_library_is_left_to_its_owner(self, npu_ops: Any) -> None:
        library = npu_ops.enable()
        npu_ops.disable()
        assert not _native()
        library._destroy()
        assert _native()


class TestEntering:
    """`enable` registers, again and again, and all or nothing."""

    def test_it_returns_the_library(self, npu_ops: Any) -> None:
        assert _native()
        library = npu_ops.enable()
        assert isinstance(library, torch.library.Library)
        assert not _native()

    @pytest.mark.parametrize("dispatch_key", ["NPU", "PrivateUse1"])
    def test_the_dispatch_key_is_the_callers(self, npu_ops: Any, dispatch_key: str) -> None:
        npu_ops.enable(dispatch_key)
        assert not _native()

    def test_another_dispatch_key_leaves_the_npu_alone(self, npu_ops: Any) -> None:
        npu_ops.enable("XPU")
        assert _native()

    @pytest.mark.parametrize("enable_bmm", [True, False])
    def test_bmm_is_optional(self, npu_ops: Any, enable_bmm: bool) -> None:
        assert npu_ops.bmm_enabled()
        npu_ops.enable(enable_bmm=enable_bmm)
        assert _native("bmm") is not enable_bmm
        assert not _native()
        assert npu_ops.bmm_enabled() is enable_bmm
        npu_ops.disable()
        assert npu_ops.bmm_enabled() is enable_bmm

    def test_torch_bmm_itself_is_not_replaced(self, npu_ops: Any) -> None:
        before = torch.bmm
        npu_ops.enable()
        assert torch.bmm is before

    def test_what_is_registered(self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        registered: list[str] = []
        impl = torch.library.Library.impl

        def spy(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
            registered.append(name)
            impl(self, name, *args, **kwargs)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(torch.library.Library, "impl", spy)
        npu_ops.enable()
        assert registered == [f"aten::{name}" for name in npu_ops._aten_kernels(True)]

    def test_what_this_torch_lacks_is_left_out(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """torch before 2.8 has no overload for the dtype of a product."""
        kernels = {"mm": npu_ops.mm, "mm.no_such": npu_ops.mm, "no_such": npu_ops.mm}
        monkeypatch.setattr(npu_ops, "_aten_kernels", lambda _: kernels)
        npu_ops.enable()
        assert not _native()

    def test_again_after_leaving(self, npu_ops: Any) -> None:
        for _ in range(3):
            library = npu_ops.enable()
            assert not _native()
            library._destroy()
            npu_ops.disable()
            assert _native()

    def test_twice_without_leaving_keeps_the_originals(self, npu_ops: Any) -> None:
        for name in REBOUND:
            getattr(torch.ops.npu, name)
        before = _attributes()
        first = npu_ops.enable()
        second = npu_ops.enable(enable_bmm=False)
        assert not _native()
        assert _native("bmm")
        first._destroy()
        assert not _native()
        second._destroy()
        npu_ops.disable()
        assert _native()
        assert _attributes() == before

    def test_after_the_library_alone_was_destroyed(self, npu_ops: Any) -> None:
        """SGLang's own `set_batch_invariant_mode` does that."""
        for name in REBOUND:
            getattr(torch.ops.npu, name)
        before = _attributes()
        npu_ops.enable()._destroy()
        assert _native()
        npu_ops.enable()
        assert not _native()
        npu_ops.disable()
        assert _attributes() == before

    @pytest.mark.parametrize("fails", range(7))
    def test_a_registration_that_fails_undoes_the_others(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch, fails: int
    ) -> None:
        count = 0
        impl = torch.library.Library.impl

        def failing(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal count
            count += 1
            if count > fails:
                raise ValueError("no more")
            impl(self, *args, **kwargs)  # type: ignore[no-untyped-call]

        before = _attributes()
        monkeypatch.setattr(torch.library.Library, "impl", failing)
        with pytest.raises(ValueError, match="no more") as caught:
            npu_ops.enable(enable_bmm=True)
        monkeypatch.undo()
        # The traceback keeps the library from being collected, which would destroy it too.
        assert caught.tb is not None
        assert _native()
        assert _attributes() == before
        npu_ops.enable()
        assert not _native()

    @pytest.mark.parametrize("step", ["_rebind", "_register_graph_handler"])
    @pytest.mark.parametrize("entered_before", [False, True])
    def test_a_later_step_that_fails_undoes_everything(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch, step: str, entered_before: bool
    ) -> None:
        for name in REBOUND:
            getattr(torch.ops.npu, name)
        before = _attributes()
        if entered_before:
            npu_ops.enable()
        count = 0
        function = getattr(npu_ops, step)

        def failing(*args: Any, **kwargs: Any) -> None:
            nonlocal count
            count += 1
            if step != "_rebind" or count == 4:
                raise KeyboardInterrupt
            function(*args, **kwargs)

        monkeypatch.setattr(npu_ops, step, failing)
        with pytest.raises(KeyboardInterrupt) as caught:
            npu_ops.enable()
        assert caught.tb is not None
        assert _native()
        assert _attributes() == before


class TestMissingExtension:
    """The operators decide, not the import."""

    @pytest.fixture(autouse=True)
    def none_installed(self, npu_ops: Any, installed_extension: None) -> None:
        extension.uninstall()

    def _refused(self, npu_ops: Any) -> pytest.ExceptionInfo[RuntimeError]:
        before = _attributes()
        with pytest.raises(RuntimeError, match="lacks npu_mm_batch_invariant, ") as caught:
            npu_ops.enable()
        assert _native()
        assert _attributes() == before
        return caught

    def test_the_error_says_what_is_missing_and_how_it_is_installed(self, npu_ops: Any) -> None:
        message = str(self._refused(npu_ops).value)
        for said in (
            "npu_log_softmax_batch_invariant",
            "npu_fused_infer_attention_score_batch_invariant",
            "Thinking Machines",
            "910b",
            "910_93",
            "built from source",
            "PyPI",
        ):
            assert said in message

    def test_no_such_package_is_the_cause(self, npu_ops: Any) -> None:
        cause = self._refused(npu_ops).value.__cause__
        assert isinstance(cause, ModuleNotFoundError)

    def test_another_package_of_the_same_name(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = ModuleType("batch_invariant_ops")
        other.__dict__["set_batch_invariant_mode"] = None
        monkeypatch.setitem(sys.modules, "batch_invariant_ops", other)
        assert self._refused(npu_ops).value.__cause__ is None

    def test_another_package_that_fails_in_its_own_way(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        tmp_path.joinpath("batch_invariant_ops.py").write_text("raise AssertionError('no Triton')")
        monkeypatch.syspath_prepend(tmp_path)
        assert isinstance(self._refused(npu_ops).value.__cause__, AssertionError)

    def test_the_extension_is_imported_when_it_was_not(
        self, npu_ops: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        tmp_path.joinpath("batch_invariant_ops.py").write_text(
            "from sgl_npu_patch.simulator import extension\nextension.install()\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        npu_ops.enable()
        assert not _native()

    def test_only_the_missing_operators_are_named(self, npu_ops: Any) -> None:
        library: Any = torch.library.Library("batch_invariant_ops", "DEF")  # type: ignore[no-untyped-call]
        library.define("npu_mm_batch_invariant(Tensor a, Tensor b) -> Tensor")
        try:
            with pytest.raises(RuntimeError, match="lacks npu_matmul_batch_invariant"):
                npu_ops.enable()
        finally:
            library._destroy()

    def test_operators_without_the_import_are_enough(self, npu_ops: Any) -> None:
        extension.install()
        del sys.modules["batch_invariant_ops"]
        npu_ops.enable()
        assert not _native()


CHILD = """
import importlib, sys
import torch
from sgl_npu_patch.simulator import device, extension, torch_npu
device.install(); torch_npu.install(); extension.install()
sys.path.insert(0, sys.argv[1])
npu_ops = importlib.import_module("batch_invariant_ops_of_sglang.npu_ops")
assert npu_ops._state.library is None
library = npu_ops.enable()
with torch.no_grad():
    torch.mm(device.npu(torch.ones(2, 2)), device.npu(torch.ones(2, 2)))
assert extension.called("npu_mm_batch_invariant")
npu_ops.disable()
library._destroy()
"""


def test_a_process_of_its_own_enables_for_itself(tmp_path: Path, mode: Any) -> None:
    """What SGLang's spawned workers do; the parent's mode is not inherited."""
    folder = tmp_path / "batch_invariant_ops_of_sglang"
    folder.mkdir()
    for name in ("npu_ops.py", "launch_guards.py"):
        folder.joinpath(name).write_bytes(FOLDER.joinpath(name).read_bytes())
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    subprocess.run(command, check=True, cwd=FOLDER.parent)


def _imports(path: Path, toplevel: bool) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    nodes = tree.body if toplevel else [*ast.walk(tree)]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return found - {*sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("npu_ops", {"torch", "torch_npu"}),
        ("launch_guards", set()),
        ("penalties", {"torch"}),
        ("seeded_sampling", {"torch"}),
    ],
)
def test_the_vendored_modules_import_nothing_else(module: str, allowed: set[str]) -> None:
    assert _imports(FOLDER / f"{module}.py", toplevel=False) == allowed


def test_importing_launch_guards_loads_nothing(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch_npu", "batch_invariant_ops"):
        monkeypatch.setitem(sys.modules, name, None)
    before = {*sys.modules}
    importlib.import_module(f"{package}.launch_guards")
    assert {*sys.modules} - before == {f"{package}.launch_guards"}


def test_importing_npu_ops_enables_nothing(npu_ops: Any) -> None:
    assert _native()
    torch.testing.assert_close(device.cpu(on_npu(2, 2) + 1), device.cpu(on_npu(2, 2)) + 1)
