"""Check what the replacements compute: values, shapes, dtypes and overloads as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

import torch

from sgl_npu_patch.simulator import extension, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.verify.behaviour import Failed, Subject, check
from sgl_npu_patch.verify.behaviour.machine import (
    ADD_RMS_NORM,
    ATTENTION,
    OLD_TORCH_NPU,
    WORKSPACE,
    Installed,
    enabled,
    error_of,
    machine,
    require_ours,
)
from sgl_npu_patch.verify.behaviour.operations import (
    ADDMM,
    BMM,
    CONTEXTS,
    HALF,
    MATMUL,
    MEAN,
    MM,
    PRODUCTS,
    ROWS,
    Operation,
    attention,
    attention_arguments,
    log_softmax,
    matmul,
    mean,
    random,
    require_invariant,
    weight,
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
            "matmul over sequences": matmul(3, 16),
            "matmul over four axes": matmul(2, 3, 16),
            "matmul of batches": Operation(
                "x @ w.expand(n, 16, 8)",
                lambda on, x: x @ weight(1, 16, 8).expand(x.shape[0], 16, 8),
                (3, 16),
                PRODUCTS,
            ),
            **MM,
            **MATMUL,
        },
    )


@check("npu_ops", gap="bmm_not_registered")
def batches_of_products_are_atens(subject: Subject) -> None:
    """Batches of products of strided operands have aten's values, shape and dtype."""
    expanded = Operation(
        "torch.bmm(x, w.expand(n, 16, 8))",
        lambda on, x: torch.bmm(x, weight(1, 16, 8).expand(x.shape[0], 16, 8)),
        (3, 16),
        PRODUCTS,
    )
    _require_like_aten(subject, {"bmm of an expanded weight": expanded, **BMM})


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
    """A mean that keeps its axis or goes over another than the last is aten's."""
    _require_like_aten(
        subject,
        {
            "a mean that keeps its axis": mean("x.mean(-1, True)", 16, dim=-1, keepdim=True),
            "a mean over a middle axis": mean("x.mean(1)", 4, 6, dim=1),
        },
    )


@check("npu_ops", gap="mean_dtype")
def means_have_atens_dtype(subject: Subject) -> None:
    """A mean over several axes, or to another dtype, is batch-invariant and has aten's dtype."""
    _require_like_aten(
        subject,
        {
            "a mean over two axes": mean("x.mean((1, -1))", 4, 3, 6, dim=(1, -1)),
            "a mean over two axes of bfloat16": mean(
                "x.mean((1, 2), True)", 4, 6, dtype=HALF, dim=(1, 2), keepdim=True
            ),
            "a mean to float32": mean("x.mean(-1, dtype=torch.float32)", 16, dtype=HALF, dim=-1),
        },
    )


@check("npu_ops", gap="mean_of_all_not_replaced")
def a_mean_over_everything_is_replaced(subject: Subject) -> None:
    """A mean over all axes, however it is asked for, is the extension's and has aten's dtype."""
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "x.mean()": lambda x: x.mean(),
        "x.mean(dim=[])": lambda x: x.mean(dim=[]),
        "x.mean((0, 1))": lambda x: x.mean((0, 1)),
        "x.mean(dim=None, keepdim=True)": lambda x: x.mean(dim=None, keepdim=True),
    }
    with enabled(subject), torch.no_grad():
        for (code, call), dtype in product(calls.items(), (torch.float32, HALF)):
            host = random((3, 4), 1, dtype)
            extension.calls.clear()
            result = cpu(call(npu(host)))
            if not extension.called(*MEAN):
                raise Failed(f"{code} is the device's own", found="no call of it", code=code)
            _require_same(code, result, call(host), code)


@check("npu_ops", gap="mean_dtype")
def a_mean_of_integers_is_an_error(subject: Subject) -> None:
    """A mean of integers is an error that says why, unless a floating dtype is asked for."""
    host = torch.arange(12).reshape(3, 4)
    with enabled(subject), torch.no_grad():
        error = error_of(lambda: npu(host).mean(-1))
        if error is None or not (subject.native or "floating point" in str(error)):
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
        {"log-softmax over a middle axis": log_softmax("torch.log_softmax(x, 1)", 4, 6, dim=1)},
    )


@check("npu_ops")
def log_softmax_converts_to_float32(subject: Subject) -> None:
    """Log-softmax of half precision to float32 is batch-invariant and aten's."""
    code = "torch.log_softmax(x, -1, dtype=torch.float32)"
    given = log_softmax(code, 16, dtype=HALF, dim=-1)
    _require_like_aten(subject, {"log-softmax to float32": given})


@check("npu_ops")
def log_softmax_may_be_asked_to_convert(subject: Subject) -> None:
    """Log-softmax converts half precision where torch leaves that to the operator."""
    # Here torch converts first, so that upstream's refusal to convert is never reached.
    require_ours(subject)
    code = "torch.ops.aten._log_softmax(x, -1, True)"
    host = random((ROWS, 16), 1, HALF)
    with enabled(subject), torch.no_grad():
        result = cpu(torch.ops.aten._log_softmax(npu(host), -1, True))
    _require_same("log-softmax to float32", result, host.float().log_softmax(-1), code)


@check("npu_ops", gap="out_overload_lost")
def attention_keeps_its_overloads(subject: Subject) -> None:
    """The overloads of the replaced attention are there, and batch-invariant too."""
    _require_like_aten(
        subject,
        {
            f"{namespace}.{ATTENTION}.{overload}": attention(namespace, overload)
            for namespace in ("torch.ops.npu", "torch_npu")
            for overload in ("default", "out")
        },
    )


@check("npu_ops")
def attention_takes_what_the_operator_takes(subject: Subject) -> None:
    """The replaced attention gives what the operator gives for the same arguments."""
    given = {"the fused attention": attention("torch.ops.npu")}
    _require_like_aten(subject, given)
    if not subject.native:
        _require_like_aten(subject, given, "1.0.0", OLD_TORCH_NPU)


@check("npu_ops")
def a_missing_overload_says_which_version_has_it(subject: Subject) -> None:
    """What version 1.0.0 of the extension lacks is an error, and never the device kernel."""
    require_ours(subject)
    with machine(subject, "1.0.0", OLD_TORCH_NPU) as on:
        on.enable()
        given, options = attention_arguments(npu(random((ROWS, 9, 16), 1)))
        out = [torch.empty_like(given[0]), npu(torch.empty(0))]
        for (name, owner), called in product(
            on.namespaces().items(), (f"{ATTENTION}.out", WORKSPACE)
        ):
            torch_npu.native_calls.clear()
            operator = attrgetter(called)(owner)
            buffers = {"workspace": out[1], "out": out} if called != WORKSPACE else {}
            error = error_of(partial(operator, *given, **options, **buffers))
            if torch_npu.native_calls or "2.0.0" not in str(error):
                raise Failed(
                    f"{name}.{called} does not say which version has it",
                    expected="an error that names 2.0.0",
                    found=", ".join(torch_npu.native_calls) or repr(error),
                    code=f"{name}.{called}(query, key, value, ...)",
                )


@check("npu_ops", gap="add_rms_norm_signature")
def add_rms_norm_returns_what_the_operator_does(subject: Subject) -> None:
    """The norm that adds the residual takes and returns what the fused operator does."""
    # So small that epsilon decides.
    x, y = (npu(random((ROWS, 16), seed) * 1e-3) for seed in (1, 2))
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


def _require_like_aten(
    subject: Subject,
    operations: Mapping[str, Operation],
    installed: Installed = "2.0.0",
    version: str = "",
) -> None:
    """Demand each row by itself, and the native result up to its last bits, in shape and dtype."""
    with machine(subject, installed, version) as on:
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
    tolerance = 4e-2 if found.dtype == HALF else 1e-5
    if not torch.allclose(found, wanted, rtol=tolerance, atol=tolerance):
        raise Failed(
            f"{name} has other values than the operator that it replaces",
            expected=str(wanted.flatten()[:4].tolist()),
            found=str(found.flatten()[:4].tolist()),
            code=code,
        )
