"""Check the batch-invariant mode: what it replaces on an NPU, and how it is entered and left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.nn import functional

from sgl_npu_patch.simulator import extension, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.sglang import VENDORED, Device, Execution
from sgl_npu_patch.verify.behaviour import Failed, NotApplicable, Subject, check
from sgl_npu_patch.verify.behaviour.machine import (
    ADD_RMS_NORM,
    ATTENTION,
    CONTEXTS,
    MODE,
    OLD_TORCH_NPU,
    REBOUND,
    ROWS,
    WORKSPACE,
    Installed,
    Machine,
    Operation,
    difference,
    enabled,
    error_of,
    invariant,
    machine,
    parameter,
    random,
    require_invariant,
    weight,
)

PRODUCTS = frozenset({"npu_mm_batch_invariant", "npu_matmul_batch_invariant"})
MEAN = frozenset({"npu_reduce_mean_batch_invariant"})
LOG_SOFTMAX = frozenset({"npu_log_softmax_batch_invariant"})
BATCH_INVARIANT_ATTENTION = frozenset({f"{ATTENTION}_batch_invariant"})
ATTENTION_V2 = f"{ATTENTION}_v2"

_HALF = torch.bfloat16


def _mm(*shape: int, dtype: torch.dtype = torch.float32) -> Operation:
    return Operation(
        "torch.mm(x, w)",
        lambda on, x: torch.mm(x, weight(*shape, dtype=dtype)),
        shape[:1],
        PRODUCTS,
        dtype,
    )


def _linear(*shape: int, bias: bool) -> Operation:
    return Operation(
        f"functional.linear(x, weight, {'bias' if bias else 'None'})",
        lambda on, x: functional.linear(x, parameter(8, 16), parameter(8) if bias else None),
        shape,
        PRODUCTS,
    )


def _matmul(*shape: int) -> Operation:
    return Operation("x @ w", lambda on, x: x @ weight(16, 8), shape, PRODUCTS)


def _mean(code: str, *shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Operation:
    return Operation(code, lambda on, x: torch.mean(x, **options), shape, MEAN, dtype)


def _log_softmax(
    code: str, *shape: int, dtype: torch.dtype = torch.float32, **options: Any
) -> Operation:
    return Operation(code, lambda on, x: torch.log_softmax(x, **options), shape, LOG_SOFTMAX, dtype)


def _attention_arguments(x: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Lay out as SGLang's decode does: one query token over a request's keys, 2 heads of 8."""
    query, key, value = x[:, :1], x[:, 1:5], x[:, 5:9]
    options = {
        "num_heads": 2,
        "input_layout": "BSH",
        "scale": 0.25,
        "actual_seq_lengths_kv": [4] * x.shape[0],
    }
    return (query.contiguous(), key.contiguous(), value.contiguous()), options


def _attention(namespace: str, overload: str = "") -> Operation:
    def call(on: Machine, x: torch.Tensor) -> torch.Tensor:
        owner = on.namespaces()[namespace]
        operator = getattr(owner, ATTENTION)
        arguments, options = _attention_arguments(x)
        if overload != "out":
            chosen = getattr(operator, overload) if overload else operator
            result: torch.Tensor = chosen(*arguments, **options)[0]
            return result
        workspace = getattr(owner, WORKSPACE)(*arguments, **options)
        buffers = [torch.empty_like(arguments[0]), npu(torch.empty(0))]
        operator.out(*arguments, **options, workspace=workspace, out=buffers)
        return buffers[0]

    code = ".".join(filter(None, (namespace, ATTENTION, overload)))
    return Operation(f"{code}(query, key, value, ...)", call, (9, 16), BATCH_INVARIANT_ATTENTION)


def _add_rms_norm(namespace: str, output: int, *shape: int) -> Operation:
    def call(on: Machine, x: torch.Tensor) -> torch.Tensor:
        operator = getattr(on.namespaces()[namespace], ADD_RMS_NORM)
        result: torch.Tensor = operator(x, x * 0.5, weight(16), 1e-5)[output]
        return result

    code = f"{namespace}.{ADD_RMS_NORM}(x, residual, gamma, 1e-5)[{output}]"
    return Operation(code, call, shape, frozenset())


MM = {"torch.mm": _mm(16, 8), "torch.mm of bfloat16": _mm(16, 8, dtype=_HALF)}
MATMUL = {
    "torch.matmul": _matmul(16),
    "a linear layer": _linear(16, bias=False),
    "a linear layer over sequences": _linear(3, 16, bias=False),
}
ADDMM = {
    "a linear layer with bias": _linear(16, bias=True),
    "a linear layer with bias over sequences": _linear(3, 16, bias=True),
}
BMM = {
    "torch.bmm": Operation(
        "torch.bmm(x, w)",
        lambda on, x: torch.bmm(x, weight(1, 16, 8).expand(x.shape[0], 16, 8).contiguous()),
        (3, 16),
        PRODUCTS,
    )
}
MEANS = {"the mean over the last axis": _mean("x.mean(-1)", 16, dim=-1)}
LOG_SOFTMAXES = {
    "log-softmax over the last axis": _log_softmax("torch.log_softmax(x, -1)", 16, dim=-1)
}
NORMS = {
    "the normed sum": _add_rms_norm("torch_npu", 0, 16),
    "the normed sum over sequences": _add_rms_norm("torch_npu", 0, 3, 16),
}

ATEN = {"mm": _mm(16, 8), "addmm": _linear(16, bias=True), "bmm": BMM["torch.bmm"]} | {
    "mean.dim": _mean("x.mean(-1)", 16, dim=-1),
    "_log_softmax": _log_softmax("torch.log_softmax(x, -1)", 16, dim=-1),
}
PROBES = ATEN | {
    f"torch.ops.npu.{ATTENTION}": _attention("torch.ops.npu"),
    f"torch_npu.{ATTENTION}": _attention("torch_npu"),
    f"torch_npu.{ADD_RMS_NORM}": _add_rms_norm("torch_npu", 0, 16),
}
"""One operation of each kind, by which the mode is seen to be on or off."""


@check("batch_invariant")
def mm_is_batch_invariant(subject: Subject) -> None:
    """A matrix product gives a row the same bits alone and in a batch."""
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


@check("batch_invariant")
def bmm_is_batch_invariant(subject: Subject) -> None:
    """A batch of matrix products gives each the same bits alone and in the batch."""
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
def attention_of_torch_ops_is_batch_invariant(subject: Subject) -> None:
    """Fused attention called through torch.ops.npu ignores the other requests of the batch."""
    with enabled(subject) as on:
        require_invariant(on, {"the fused attention": _attention("torch.ops.npu")})


@check("batch_invariant", gap="alias_not_rebound")
def attention_of_torch_npu_is_batch_invariant(subject: Subject) -> None:
    """Fused attention called through torch_npu, which copied the operator, is replaced too."""
    with enabled(subject) as on:
        require_invariant(on, {"the fused attention": _attention("torch_npu")})


@check("batch_invariant", gap="workspace_not_rebound")
def workspace_is_that_of_the_replacement(subject: Subject) -> None:
    """The workspace for fused attention is measured by the operator that will use it."""
    with enabled(subject) as on:
        # SGLang asks torch_npu; the replacement of both is what npu_ops adds to that.
        for name in ("torch_npu",) if subject.native else on.namespaces():
            extension.calls.clear()
            arguments, options = _attention_arguments(npu(random((ROWS, 9, 16), 1)))
            getattr(on.namespaces()[name], WORKSPACE)(*arguments, **options)
            wanted = f"_{ATTENTION}_batch_invariant_get_max_workspace"
            if not extension.called(wanted):
                raise Failed(
                    f"{name}.{WORKSPACE} is the native operator's",
                    expected=f"a call of batch_invariant_ops.{wanted}",
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
    with machine(subject) as on:
        before = partial(on.torch_npu.__dict__[ATTENTION])
        on.torch_npu.__dict__[ATTENTION_V2] = before
        on.enable()
        if on.torch_npu.__dict__[ATTENTION_V2] is before:
            raise Failed(
                f"the native {ATTENTION_V2} stays in its place",
                expected="a batch-invariant operator",
                found="the native operator",
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
        with on.mode.set_batch_invariant_mode():
            _require_on(on, working, "in `with set_batch_invariant_mode():`")
        _require_off(on, "behind `with set_batch_invariant_mode():`")
        with on.mode.set_batch_invariant_mode(False):
            _require_off(on, "in `with set_batch_invariant_mode(False):`")
        _require_off(on, "behind `with set_batch_invariant_mode(False):`")


@check("batch_invariant")
def a_scoped_mode_ends_as_it_began(subject: Subject) -> None:
    """Behind a scoped mode, left by an exception too, the mode is on or off as in front of it."""
    working = _working_of(subject)
    for start, inside, fails in product((False, True), repeat=3):
        with _scoped(subject, start, inside, fails) as (on, where):
            if start:
                _require_on(on, working, where)
            else:
                _require_off(on, where)


@check("batch_invariant")
def scoped_modes_can_be_nested(subject: Subject) -> None:
    """A scoped mode inside another is on or off as it says, and the outer one goes on behind it."""
    working = _working_of(subject)
    scope = "set_batch_invariant_mode"
    with machine(subject) as on, on.mode.set_batch_invariant_mode(True):
        with on.mode.set_batch_invariant_mode(False):
            _require_off(on, f"in {scope}(False) in {scope}(True)")
            with on.mode.set_batch_invariant_mode(True):
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


@check("batch_invariant")
def a_scoped_mode_keeps_the_choice_of_bmm(subject: Subject) -> None:
    """A scoped mode inside one that was entered without bmm leaves it without bmm."""
    working = _working_of(subject) - {"bmm"}
    for inside in (True, False):
        with machine(subject) as on:
            _require_bmm_parameter(on)
            on.enable(enable_bmm=False)
            with on.mode.set_batch_invariant_mode(inside):
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


@check("batch_invariant")
def a_mode_that_cannot_be_entered_is_off(subject: Subject) -> None:
    """After a failure to enter it, for lack of the extension, the mode is off."""
    for installed, scoped in product(_WITHOUT_EXTENSION, (False, True)):
        with machine(subject, installed) as on:
            before = on.rebound()
            if scoped:
                error = error_of(on.mode.set_batch_invariant_mode().__enter__)
            else:
                error = error_of(on.enable)
            if error is None:
                raise Failed("the mode is entered without the extension", expected="an error")
            _require_off(on, f"after {type(error).__name__}")
            _require_objects(on, before, f"after {type(error).__name__}")


@check("batch_invariant")
def extension_1_is_enough(subject: Subject) -> None:
    """With version 1.0.0 of the extension and an older torch_npu the mode works too."""
    _require_ours(subject)
    with machine(subject, "1.0.0", OLD_TORCH_NPU) as on:
        on.enable()
        require_invariant(on, PROBES)


@check("batch_invariant")
def other_devices_do_what_they_did(subject: Subject) -> None:
    """On every other device the mode registers, replaces and gives back what it did unpatched."""
    if subject.base is None:
        raise NotApplicable("needs --base, the unpatched tree to compare with")
    for on in ("cuda", "hip", "xpu", "cpu"):
        expected, found = _trace(subject.base, on), _trace(subject.package, on)
        for old, new in zip([*expected, None], [*found, None], strict=False):
            if new != old:
                raise Failed(
                    f"the mode does something else on {on}",
                    expected=_shown(old),
                    found=_shown(new),
                    code="enable_batch_invariant_mode()",
                )


@check("batch_invariant")
def nothing_of_the_npu_is_needed_elsewhere(subject: Subject) -> None:
    """On CUDA the mode registers under "CUDA" alone and imports nothing made for the NPU."""
    trace = _trace(subject.package, "cuda")
    keys = {event[3] for event in trace if event[0] == "impl"}
    if keys != {("CUDA",)}:
        raise Failed(
            "on CUDA the mode registers under other keys",
            expected="CUDA",
            found=", ".join(sorted(map(repr, keys))),
            code="enable_batch_invariant_mode()",
        )
    _, *loaded = trace[-1]
    if loaded:
        raise Failed(
            "on CUDA the mode imports modules for the NPU",
            expected="none",
            found=", ".join(loaded),
            code="enable_batch_invariant_mode()",
        )


@check("npu_ops")
def products_are_atens(subject: Subject) -> None:
    """Products of strided, batched and folded operands have aten's values, shape and dtype."""
    _require_like_aten(
        subject,
        {
            "mm of a transposed weight": Operation(
                "torch.mm(x, w.t())",
                lambda on, x: torch.mm(x, weight(8, 16).t()),
                (16,),
                PRODUCTS,
            ),
            "matmul over sequences": _matmul(3, 16),
            "matmul over four axes": _matmul(2, 3, 16),
            "matmul of batches": Operation(
                "x @ w.expand(n, 16, 8)",
                lambda on, x: x @ weight(1, 16, 8).expand(x.shape[0], 16, 8),
                (3, 16),
                PRODUCTS,
            ),
            "bmm of an expanded weight": Operation(
                "torch.bmm(x, w.expand(n, 16, 8))",
                lambda on, x: torch.bmm(x, weight(1, 16, 8).expand(x.shape[0], 16, 8)),
                (3, 16),
                PRODUCTS,
            ),
            **MM,
            **MATMUL,
        },
    )


@check("npu_ops", gap="addmm_not_registered")
def addmm_scales_and_adds(subject: Subject) -> None:
    """A product with an addend is beta times the addend plus alpha times the product."""
    _require_like_aten(
        subject,
        {
            "addmm with beta and alpha": Operation(
                "torch.addmm(bias, x, w, beta=0.5, alpha=2.0)",
                lambda on, x: torch.addmm(weight(8), x, weight(16, 8), beta=0.5, alpha=2.0),
                (16,),
                PRODUCTS,
            ),
            **ADDMM,
        },
    )


@check("npu_ops")
def means_go_over_any_axis(subject: Subject) -> None:
    """A mean over other axes than the last, or several, is batch-invariant and aten's."""
    _require_like_aten(
        subject,
        {
            "a mean that keeps its axis": _mean("x.mean(-1, True)", 16, dim=-1, keepdim=True),
            "a mean over a middle axis": _mean("x.mean(1)", 4, 6, dim=1),
            "a mean over two axes": _mean("x.mean((1, -1))", 4, 3, 6, dim=(1, -1)),
        },
    )


@check("npu_ops", gap="mean_dtype")
def means_have_atens_dtype(subject: Subject) -> None:
    """A mean has the dtype that aten's has."""
    _require_like_aten(
        subject,
        {
            "a mean over two axes of bfloat16": _mean(
                "x.mean((1, 2), True)", 4, 6, dtype=_HALF, dim=(1, 2), keepdim=True
            ),
            "a mean to float32": _mean(
                "x.mean(-1, dtype=torch.float32)", 16, dtype=_HALF, dim=-1
            ),
        },
    )


@check("npu_ops")
def a_mean_over_everything_is_replaced(subject: Subject) -> None:
    """A mean over all axes, however it is asked for, is the extension's and has aten's dtype."""
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "x.mean()": lambda x: x.mean(),
        "x.mean(dim=[])": lambda x: x.mean(dim=[]),
        "x.mean((0, 1))": lambda x: x.mean((0, 1)),
        "x.mean(dim=None, keepdim=True)": lambda x: x.mean(dim=None, keepdim=True),
    }
    with enabled(subject), torch.no_grad():
        for (code, call), dtype in product(calls.items(), (torch.float32, _HALF)):
            host = random((3, 4), 1, dtype)
            extension.calls.clear()
            result = cpu(call(npu(host)))
            if not extension.called(*MEAN):
                raise Failed(f"{code} is the device's own", found="no call of it", code=code)
            _require_same(code, result, call(host), code)


@check("npu_ops")
def a_mean_of_integers_is_an_error(subject: Subject) -> None:
    """A mean of integers is an error that says why, unless a floating dtype is asked for."""
    host = torch.arange(12).reshape(3, 4)
    with enabled(subject), torch.no_grad():
        error = error_of(lambda: npu(host).mean(-1))
        if "floating point" not in str(error):
            raise Failed(
                "a mean of integers does not say what it takes",
                expected="an error about floating point",
                found=repr(error) if error else "no error",
                code="integers.mean(-1)",
            )
        result = cpu(npu(host).mean(-1, dtype=torch.float32))
    code = "integers.mean(-1, dtype=torch.float32)"
    _require_same("a mean of integers", result, host.float().mean(-1), code)


@check("npu_ops")
def log_softmax_goes_over_any_axis(subject: Subject) -> None:
    """Log-softmax over another axis than the last is batch-invariant and aten's."""
    _require_like_aten(
        subject,
        {"log-softmax over a middle axis": _log_softmax("torch.log_softmax(x, 1)", 4, 6, dim=1)},
    )


@check("npu_ops")
def log_softmax_converts_to_float32(subject: Subject) -> None:
    """Log-softmax of half precision to float32 is batch-invariant and aten's."""
    code = "torch.log_softmax(x, -1, dtype=torch.float32)"
    given = _log_softmax(code, 16, dtype=_HALF, dim=-1)
    _require_like_aten(subject, {"log-softmax to float32": given})


@check("npu_ops", gap="out_overload_lost")
def attention_keeps_its_overloads(subject: Subject) -> None:
    """The overloads of the replaced attention are there, and batch-invariant too."""
    _require_like_aten(
        subject,
        {
            f"{namespace}.{ATTENTION}.{overload}": _attention(namespace, overload)
            for namespace in ("torch.ops.npu", "torch_npu")
            for overload in ("default", "out")
        },
    )


@check("npu_ops")
def attention_takes_what_the_operator_takes(subject: Subject) -> None:
    """The replaced attention gives what the operator gives for the same arguments."""
    _require_like_aten(subject, {"the fused attention": _attention("torch.ops.npu")})


@check("npu_ops")
def a_missing_overload_says_which_version_has_it(subject: Subject) -> None:
    """With version 1.0.0 of the extension .out is an error, and never the native kernel."""
    _require_ours(subject)
    with machine(subject, "1.0.0", OLD_TORCH_NPU) as on:
        on.enable()
        for name in on.namespaces():
            operation = _attention(name, "out")
            torch_npu.native_calls.clear()
            error = error_of(partial(operation.call, on, operation.batch()))
            if torch_npu.native_calls or "2.0.0" not in str(error):
                raise Failed(
                    f"{name}.{ATTENTION}.out does not say which version has it",
                    expected="an error that names 2.0.0",
                    found=", ".join(torch_npu.native_calls) or repr(error),
                    code=operation.code,
                )


@check("npu_ops")
def add_rms_norm_returns_what_the_operator_does(subject: Subject) -> None:
    """The norm that adds the residual takes and returns what the fused operator does."""
    x, y = (npu(random((ROWS, 16), seed)) for seed in (1, 2))
    gamma = weight(16)
    calls: dict[str, Callable[[Any], Any]] = {
        "(x, y, gamma, 1e-5)": lambda operator: operator(x, y, gamma, 1e-5),
        "(x, y, gamma)": lambda operator: operator(x, y, gamma),
        "(x1=x, x2=y, gamma=gamma, epsilon=1e-5)": lambda operator: operator(
            x1=x, x2=y, gamma=gamma, epsilon=1e-5
        ),
    }
    with machine(subject) as on:
        expected = [call(getattr(on.torch_npu, ADD_RMS_NORM)) for call in calls.values()]
        on.enable()
        for (code, call), wanted in zip(calls.items(), expected, strict=True):
            found = call(getattr(on.torch_npu, ADD_RMS_NORM))
            parts = zip(("normed", "rstd", "sum"), found, wanted, strict=True)
            for part, one, other in parts:
                shown = f"torch_npu.{ADD_RMS_NORM}{code}"
                if one is None:
                    raise Failed(f"{part} is None", expected="a tensor", found="None", code=shown)
                _require_same(part, cpu(one), cpu(other), shown)


_WITHOUT_EXTENSION: tuple[Installed, ...] = ("none", "another")


def _require_ours(subject: Subject) -> None:
    if subject.native:
        raise NotApplicable("upstream's module is written for one version of the extension")


def _require_bmm_parameter(on: Machine) -> None:
    if not on.takes_bmm:
        raise NotApplicable("the mode has no enable_bmm on this tree")


def _require_like_aten(subject: Subject, operations: dict[str, Operation]) -> None:
    """Demand each row by itself, and the native result up to its last bits, in shape and dtype."""
    with machine(subject) as on:
        with torch.no_grad():
            expected = {n: cpu(o.call(on, o.batch())).clone() for n, o in operations.items()}
        on.enable()
        for name, operation in operations.items():
            for context in CONTEXTS:
                with context():
                    result = cpu(operation.call(on, operation.batch()))
                _require_same(name, result, expected[name], operation.code)
        require_invariant(on, operations)


def _require_same(name: str, found: torch.Tensor, wanted: torch.Tensor, code: str) -> None:
    for what in ("dtype", "shape"):
        one, other = getattr(found, what), getattr(wanted, what)
        if one != other:
            raise Failed(
                f"{name} has the {what} {one}", expected=str(other), found=str(one), code=code
            )
    tolerance = 4e-2 if found.dtype == _HALF else 1e-5
    if not torch.allclose(found, wanted, rtol=tolerance, atol=tolerance):
        raise Failed(
            f"{name} has other values than the operator that it replaces",
            expected=str(wanted.flatten()[:4].tolist()),
            found=str(found.flatten()[:4].tolist()),
            code=code,
        )


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
    if found != working or not on.mode.is_batch_invariant_mode_enabled():
        raise Failed(
            f"the mode is not on {where}",
            expected=f"replaced: {', '.join(sorted(working))}",
            found=f"replaced: {', '.join(sorted(found)) or 'nothing'}; "
            f"is_batch_invariant_mode_enabled() {on.mode.is_batch_invariant_mode_enabled()}",
            code=where,
        )


def _require_off(on: Machine, where: str) -> None:
    """Demand that nothing of aten is replaced; operators called as attributes are another matter."""
    found = invariant(on, ATEN)
    if found or on.mode.is_batch_invariant_mode_enabled():
        raise Failed(
            f"the mode is not off {where}",
            expected="replaced: nothing",
            found=f"replaced: {', '.join(sorted(found)) or 'nothing'}; "
            f"is_batch_invariant_mode_enabled() {on.mode.is_batch_invariant_mode_enabled()}",
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
            with on.mode.set_batch_invariant_mode(inside):
                if fails:
                    raise KeyError("of the check")
        except KeyError:
            pass
        where = f"behind set_batch_invariant_mode({inside})"
        where += " that an exception left" * fails
        where += " in an enabled mode" * start
        yield on, where


class _Library:
    """Stand for `torch.library.Library`; write down what is done with it."""

    log: list[Any]

    def __init__(self, namespace: str, kind: str, *others: object) -> None:
        self.log.append(("new", namespace, kind, others))

    def impl(self, name: str, function: Callable[..., Any], *others: object) -> None:
        self.log.append(("impl", name, _identity(function), others))

    def _destroy(self) -> None:
        self.log.append(("destroy",))


def _identity(function: Any) -> tuple[str, object]:
    """Tell functions of two trees apart by name and code."""
    code: CodeType = function.__code__
    return function.__qualname__, (code.co_code, code.co_consts[1:], code.co_names)


def _shown(event: Any) -> str:
    """Show an event without the code of its functions."""
    if isinstance(event, tuple):
        parts = (p[0] if isinstance(p, tuple) and p and isinstance(p[0], str) else p for p in event)
        return " ".join(map(str, parts))
    return "nothing more" if event is None else str(event)


@cache
def _trace(package: Path, on: Device) -> list[Any]:
    """Return everything that the mode does off the NPU; torch_npu cannot be imported."""
    log: list[Any] = []
    _Library.log = log
    bmm, library = torch.bmm, torch.library.Library
    with Execution(package, on) as execution:
        module = execution.load(MODE)
        vars(torch.library)["Library"] = _Library
        try:
            _walk(module, log)
        except RuntimeError as error:
            log.append(str(error))
        finally:
            vars(torch)["bmm"] = bmm
            vars(torch.library)["Library"] = library
        log.append(("loaded", *sorted(n for n in sys.modules if n.startswith(f"{VENDORED}."))))
    return log


def _walk(module: Any, log: list[Any]) -> None:
    """Go through what the module offers, writing down `torch.bmm` and the flag after each step."""
    original = torch.bmm
    takes_bmm = "enable_bmm" in module.enable_batch_invariant_mode.__code__.co_varnames

    def note(step: str) -> None:
        bmm = "original" if torch.bmm is original else _identity(torch.bmm)
        log.append((step, bmm, module.is_batch_invariant_mode_enabled()))

    for options in ({}, {"enable_bmm": False}, {"enable_bmm": True}) if takes_bmm else ({},):
        module.enable_batch_invariant_mode(**options)
        note("on")
        module.enable_batch_invariant_mode(**options)
        note("on again")
        module.disable_batch_invariant_mode()
        note("off")
    for start, inside in product((False, True), repeat=2):
        torch.bmm = original
        if start:
            module.enable_batch_invariant_mode()
        with module.set_batch_invariant_mode(inside):
            note(f"{inside} in {start}")
        note("left")
        module._batch_invariant_LIB = None
        module._batch_invariant_MODE = False
    try:
        with module.set_batch_invariant_mode():
            raise KeyError("of the check")
    except KeyError:
        note("left by an exception")


@cache
def _mentions(package: Path, name: str) -> bool:
    """Tell whether some file of the tree names an operator."""
    files = sorted((package / "srt").rglob("*.py"))
    return any(name.encode() in file.read_bytes() for file in files)
