"""Check the batch-invariant mode: what it replaces on an NPU, and how it is entered and left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path

import torch

from sgl_npu_patch.simulator import extension
from sgl_npu_patch.simulator.device import npu
from sgl_npu_patch.verify.behaviour import Failed, Subject, check
from sgl_npu_patch.verify.behaviour.machine import (
    ADD_RMS_NORM,
    ATTENTION,
    OLD_TORCH_NPU,
    WORKSPACE,
    WORKSPACE_OF_EXTENSION,
    Installed,
    Machine,
    enabled,
    error_of,
    machine,
    require_ours,
)
from sgl_npu_patch.verify.behaviour.operations import (
    ADDMM,
    ATEN,
    BMM,
    LOG_SOFTMAXES,
    MATMUL,
    MEANS,
    MM,
    NORMS,
    PROBES,
    ROWS,
    SOFTMAXES,
    SUMS,
    attention,
    attention_arguments,
    invariant,
    random,
    require_invariant,
)
from sgl_npu_patch.verify.behaviour.recorded import shown, trace
from sgl_npu_patch.verify.findings import NotApplicable

ATTENTION_V2 = f"{ATTENTION}_v2"


@check("batch_invariant")
def mm_is_batch_invariant(subject: Subject) -> None:
    """A matrix multiplication gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, MM)


@check("batch_invariant")
def matmul_is_batch_invariant(subject: Subject) -> None:
    """A linear layer without bias gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, MATMUL)


@check("batch_invariant", gap="addmm_not_registered")
def addmm_is_batch_invariant(subject: Subject) -> None:
    """A linear layer with bias gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, ADDMM)


@check("batch_invariant", gap="bmm_not_registered")
def bmm_is_batch_invariant(subject: Subject) -> None:
    """A batched matrix multiplication gives each matrix the same bits alone and in the batch."""
    with enabled(subject) as on:
        require_invariant(on, BMM)


@check("batch_invariant")
def mean_is_batch_invariant(subject: Subject) -> None:
    """A mean over the last axis gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, MEANS)


@check("batch_invariant")
def log_softmax_is_batch_invariant(subject: Subject) -> None:
    """Log-softmax over the last axis gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, LOG_SOFTMAXES)


@check("batch_invariant")
def softmax_is_batch_invariant(subject: Subject) -> None:
    """Softmax over the last axis gives a row the same bits alone and in a batch."""
    require_ours(subject)
    with enabled(subject) as on:
        require_invariant(on, SOFTMAXES)


@check("batch_invariant")
def sum_is_batch_invariant(subject: Subject) -> None:
    """A sum over the last axis, or over several, gives a row the same bits alone and in a batch."""
    require_ours(subject)
    with enabled(subject) as on:
        require_invariant(on, SUMS)


@check("batch_invariant")
def attention_of_torch_ops_is_batch_invariant(subject: Subject) -> None:
    """Fused attention called through torch.ops.npu ignores the other requests of the batch."""
    with enabled(subject) as on:
        require_invariant(on, {"the fused attention": attention("torch.ops.npu")})


@check("batch_invariant", gap="alias_not_rebound")
def attention_of_torch_npu_is_batch_invariant(subject: Subject) -> None:
    """Fused attention called through torch_npu, which copied the operator, is replaced too."""
    with enabled(subject) as on:
        require_invariant(on, {"the fused attention": attention("torch_npu")})


@check("batch_invariant", gap="workspace_not_rebound")
def workspace_is_that_of_the_replacement(subject: Subject) -> None:
    """The workspace for fused attention is measured by the operator that will use it."""
    with enabled(subject) as on:
        # SGLang asks torch_npu; the replacement of both is what npu_ops adds to that.
        for name in ("torch_npu",) if subject.native else on.namespaces():
            extension.calls.clear()
            arguments, options = attention_arguments(npu(random((ROWS, 9, 16), 1)))
            getattr(on.namespaces()[name], WORKSPACE)(*arguments, **options)
            if not extension.called(WORKSPACE_OF_EXTENSION):
                raise Failed(
                    f"{name}.{WORKSPACE} is the original operator's",
                    expected=f"a call of batch_invariant_ops.{WORKSPACE_OF_EXTENSION}",
                    found="none",
                    code=f"{name}.{WORKSPACE}(query, key, value, ...)",
                )


@check("batch_invariant")
def add_rms_norm_is_batch_invariant(subject: Subject) -> None:
    """The norm that adds the residual gives a row the same bits alone and in a batch."""
    with enabled(subject) as on:
        require_invariant(on, NORMS)


@check("batch_invariant", gap="fused_attention_v2_not_replaced")
def attention_v2_is_replaced(subject: Subject) -> None:
    """The second version of fused attention, where the tree calls it, is replaced too."""
    if not _mentions(subject.package, ATTENTION_V2):
        raise NotApplicable(f"the tree does not call {ATTENTION_V2}")
    if not subject.native:
        # What our code cannot close it must say, which another check insists on.
        raise NotApplicable(
            f"nothing can replace {ATTENTION_V2}: Ascend's extension has no batch-invariant "
            "variant of it, so the gap stays open, and the server says so when it is launched"
        )
    with machine(subject) as on:
        before = partial(on.torch_npu.__dict__[ATTENTION])
        on.torch_npu.__dict__[ATTENTION_V2] = before
        on.enable()
        if on.torch_npu.__dict__[ATTENTION_V2] is before:
            raise Failed(
                f"the original {ATTENTION_V2} stays in its place",
                expected="a batch-invariant operator",
                found="the original operator",
                code=f"torch_npu.{ATTENTION_V2}(query, key, value, ...)",
            )


@check("batch_invariant")
def a_draft_worker_may_enable_again(subject: Subject) -> None:
    """A draft worker of the same process that enables the mode again changes nothing."""
    with enabled(subject) as on:
        working, objects = _working(on), on.rebound()
        on.registered.clear()
        on.enable()
        if on.registered:
            raise Failed(
                "a second call registers again",
                expected="nothing",
                found=", ".join(name for name, _, _ in on.registered),
                code="enable_batch_invariant_mode(); enable_batch_invariant_mode()",
            )
        _require_objects(on, objects, "after a second enable_batch_invariant_mode()")
        _require_on(on, working, "after a second enable_batch_invariant_mode()")


@check("batch_invariant")
def leaving_gives_the_kernels_back(subject: Subject) -> None:
    """Left, the mode has nothing of aten registered any more."""
    with machine(subject) as on:
        _require_off(on, "before enable_batch_invariant_mode()")
        on.enable()
        for _ in range(2):
            on.disable()
            _require_off(on, "after disable_batch_invariant_mode()")


@check("batch_invariant", gap="rebinding_not_undone")
def leaving_gives_the_operators_back(subject: Subject) -> None:
    """Left, the mode has put back the very operators that were there, torch_npu's wrappers too."""
    with machine(subject) as on:
        before = on.rebound()
        on.enable()
        on.disable()
        _require_objects(on, before, "after disable_batch_invariant_mode()")
    with machine(subject) as on:
        wrapper = partial(on.torch_npu.__dict__[ADD_RMS_NORM])
        on.torch_npu.__dict__[ADD_RMS_NORM] = wrapper
        before = on.rebound()
        on.enable()
        if getattr(on.torch_npu, ADD_RMS_NORM) is wrapper:
            raise Failed(f"a Python wrapper in the place of torch_npu.{ADD_RMS_NORM} is left there")
        on.disable()
        _require_objects(on, before, "after disable_batch_invariant_mode()")


@check("batch_invariant")
def the_mode_can_be_entered_again(subject: Subject) -> None:
    """Entered and left again and again, the mode works each time."""
    with enabled(subject) as on:
        working = _working(on)
        for _ in range(2):
            on.disable()
            on.enable()
            _require_on(on, working, "after disable_ and enable_batch_invariant_mode()")


@check("batch_invariant")
def without_bmm_it_alone_stays_native(subject: Subject) -> None:
    """Entered without bmm, the mode replaces everything else."""
    with enabled(subject) as on:
        _require_bmm_parameter(on)
        working = _working(on)
    with machine(subject) as on:
        on.enable(enable_bmm=False)
        _require_on(on, working - {"bmm"}, "after enable_batch_invariant_mode(enable_bmm=False)")
        on.disable()
        on.enable(enable_bmm=True)
        _require_on(on, working, "after enable_batch_invariant_mode(enable_bmm=True)")


@check("batch_invariant")
def a_scoped_mode_is_on_inside_and_off_behind(subject: Subject) -> None:
    """A scoped mode works inside its block, and is off behind it."""
    working = _working_of(subject)
    with machine(subject) as on:
        with on.scoped():
            _require_on(on, working, "in `with set_batch_invariant_mode():`")
        _require_off(on, "behind `with set_batch_invariant_mode():`")
        with on.scoped(False):
            _require_off(on, "in `with set_batch_invariant_mode(False):`")
        _require_off(on, "behind `with set_batch_invariant_mode(False):`")


@check("batch_invariant", gap="scoped_mode_not_restored")
def a_scoped_mode_ends_as_it_began(subject: Subject) -> None:
    """Behind a scoped mode, left by an exception too, the mode is on or off as in front of it."""
    working = _working_of(subject)
    for start, inside, fails in product((False, True), repeat=3):
        with _scoped(subject, start, inside, fails) as (on, where):
            if start:
                _require_on(on, working, where)
            else:
                _require_off(on, where)


@check("batch_invariant", gap="scoped_mode_not_restored")
def scoped_modes_can_be_nested(subject: Subject) -> None:
    """A scoped mode inside another is on or off as it says, and the outer one goes on behind it."""
    working = _working_of(subject)
    scope = "set_batch_invariant_mode"
    with machine(subject) as on, on.scoped(True):
        with on.scoped(False):
            _require_off(on, f"in {scope}(False) in {scope}(True)")
            with on.scoped(True):
                _require_on(on, working, f"in {scope}(True) in {scope}(False) in {scope}(True)")
            _require_off(on, f"in {scope}(False), behind {scope}(True)")
        _require_on(on, working, f"in {scope}(True), behind {scope}(False)")


@check("batch_invariant", gap="rebinding_not_undone")
def a_scoped_mode_gives_the_operators_back(subject: Subject) -> None:
    """Behind a scoped mode the operators are the very objects that were in front of it."""
    for start, inside, fails in product((False, True), repeat=3):
        objects: dict[str, object] = {}
        with _scoped(subject, start, inside, fails, objects) as (on, where):
            _require_objects(on, objects, where)


@check("batch_invariant", gap="scoped_mode_not_restored")
def a_scoped_mode_keeps_the_choice_of_bmm(subject: Subject) -> None:
    """A scoped mode inside one that was entered without bmm leaves it without bmm."""
    working = _working_of(subject) - {"bmm"}
    for inside in (True, False):
        with machine(subject) as on:
            _require_bmm_parameter(on)
            on.enable(enable_bmm=False)
            with on.scoped(inside):
                pass
            _require_on(on, working, f"behind set_batch_invariant_mode({inside})")


@check("batch_invariant")
def nothing_of_the_cuda_set_is_registered(subject: Subject) -> None:
    """On an NPU the mode registers each operator once, under "NPU", and no Triton kernel."""
    with machine(subject) as on:
        bmm = torch.bmm
        on.enable()
        if torch.bmm is not bmm:
            raise Failed("torch.bmm itself is replaced on an NPU", code="torch.bmm")
        names = [name.removeprefix("aten::") for name, _, _ in on.registered]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Failed(f"{', '.join(twice)} is registered twice")
        for name, function, key in on.registered:
            owner = getattr(function, "__module__", None) or ""
            if key != "NPU" or not owner.startswith("sglang.srt.hardware_backend.npu"):
                raise Failed(
                    f"{name} is registered under {key!r} with a function of {owner}",
                    expected='"NPU", and a function of sglang.srt.hardware_backend.npu',
                    found=f"{key!r}, {owner}.{getattr(function, '__name__', function)}",
                    code="enable_batch_invariant_mode()",
                )


@check("batch_invariant")
def a_missing_extension_is_said(subject: Subject) -> None:
    """Without Ascend's extension, or with another package of its name, enabling says what lacks."""
    require_ours(subject)
    for installed in _WITHOUT_EXTENSION:
        with machine(subject, installed) as on:
            for _ in range(2):
                error = error_of(on.enable)
                if "npu_mm_batch_invariant" not in str(error):
                    raise Failed(
                        "what is missing is not said"
                        f"{'' if installed == 'none' else ', with another package of that name'}",
                        expected="an error that names npu_mm_batch_invariant",
                        found=repr(error) if error else "no error",
                        code="enable_batch_invariant_mode()",
                    )


@check("batch_invariant", gap="extension_not_checked")
def a_mode_that_cannot_be_entered_is_off(subject: Subject) -> None:
    """After a failure to enter it, for lack of the extension, the mode is off."""
    for installed, scoped in product(_WITHOUT_EXTENSION, (False, True)):
        with machine(subject, installed) as on:
            before = on.rebound()
            error = error_of(on.scoped().__enter__) if scoped else error_of(on.enable)
            if error is None:
                raise Failed("the mode is entered without the extension", expected="an error")
            _require_off(on, f"after {type(error).__name__}")
            _require_objects(on, before, f"after {type(error).__name__}")


@check("batch_invariant")
def extension_1_is_enough(subject: Subject) -> None:
    """With version 1.0.0 of the extension and an older torch_npu the mode works too."""
    require_ours(subject)
    with machine(subject, "1.0.0", OLD_TORCH_NPU) as on:
        on.enable()
        require_invariant(on, PROBES)


@check("batch_invariant")
def other_devices_do_what_they_did(subject: Subject) -> None:
    """On every other device the mode registers, replaces and gives back what it did unpatched."""
    if subject.base is None:
        raise NotApplicable("needs --base, the unpatched tree to compare with")
    for on in ("cuda", "hip", "xpu", "cpu"):
        expected, found = trace(subject.base, on), trace(subject.package, on)
        for old, new in zip([*expected, None], [*found, None], strict=False):
            if new != old:
                raise Failed(
                    f"the mode does something else on {on}",
                    expected=shown(old),
                    found=shown(new),
                    code="enable_batch_invariant_mode()",
                )


@check("batch_invariant")
def nothing_of_the_npu_is_needed_elsewhere(subject: Subject) -> None:
    """On CUDA the mode registers under "CUDA" alone and imports nothing made for the NPU."""
    done = trace(subject.package, "cuda")
    keys = {event[3] for event in done if event[0] == "impl"}
    if keys != {("CUDA",)}:
        raise Failed(
            "on CUDA the mode registers under other keys",
            expected="CUDA",
            found=", ".join(sorted(map(repr, keys))),
            code="enable_batch_invariant_mode()",
        )
    _, *loaded = done[-1]
    if loaded:
        raise Failed(
            "on CUDA the mode imports modules for the NPU",
            expected="none",
            found=", ".join(loaded),
            code="enable_batch_invariant_mode()",
        )


_WITHOUT_EXTENSION: tuple[Installed, ...] = ("none", "another")


def _require_bmm_parameter(on: Machine) -> None:
    if not on.takes_bmm:
        raise NotApplicable("the mode has no enable_bmm on this tree")


def _working(on: Machine) -> frozenset[str]:
    """Name the probes that the mode replaces, which it does at least for products."""
    found = invariant(on, PROBES)
    if "mm" not in found:
        raise Failed("the mode is entered and does not replace aten::mm", code=ATEN["mm"].code)
    return found


def _working_of(subject: Subject) -> frozenset[str]:
    with enabled(subject) as on:
        return _working(on)


def _require_on(on: Machine, working: frozenset[str], where: str) -> None:
    found = invariant(on, PROBES)
    if found != working or not on.is_enabled:
        raise Failed(
            f"the mode is not on {where}",
            expected=f"replaced: {', '.join(sorted(working))}",
            found=f"replaced: {', '.join(sorted(found)) or 'nothing'}; "
            f"is_batch_invariant_mode_enabled() {on.is_enabled}",
            code=where,
        )


def _require_off(on: Machine, where: str) -> None:
    """Demand that nothing of aten is replaced; what is called as an attribute is another matter."""
    found = invariant(on, ATEN)
    if found or on.is_enabled:
        raise Failed(
            f"the mode is not off {where}",
            expected="replaced: nothing",
            found=f"replaced: {', '.join(sorted(found)) or 'nothing'}; "
            f"is_batch_invariant_mode_enabled() {on.is_enabled}",
            code=where,
        )


def _require_objects(on: Machine, before: dict[str, object], where: str) -> None:
    after = on.rebound()
    for name, value in before.items():
        if after[name] is not value:
            raise Failed(
                f"{name} is another object {where}",
                expected=repr(value),
                found=repr(after[name]),
                code=name,
            )


@contextmanager
def _scoped(
    subject: Subject,
    start: bool,
    inside: bool,
    fails: bool,
    objects: dict[str, object] | None = None,
) -> Iterator[tuple[Machine, str]]:
    """Give a machine behind a scoped mode, and say where that is."""
    with machine(subject) as on:
        if start:
            on.enable()
        if objects is not None:
            objects.update(on.rebound())
        try:
            with on.scoped(inside):
                if fails:
                    raise KeyError("of the check")
        except KeyError:
            pass
        where = f"behind set_batch_invariant_mode({inside})"
        where += " that an exception left" * fails
        where += " in an enabled mode" * start
        yield on, where


@cache
def _mentions(package: Path, name: str) -> bool:
    """Tell whether some file of the tree names an operator as an attribute, to call it."""
    files = sorted((package / "srt").rglob("*.py"))
    return any(f".{name}".encode() in file.read_bytes() for file in files)
