"""Run a tree's batch-invariant mode on the simulated NPU.

    python -m tests.upstream.scenarios TREE EXTENSION TORCH_NPU [SCENARIO...]

EXTENSION is a version, "none", or "another" for the package that only shares its import name. The
simulated device registers kernels with torch for good, so every tree gets a process of its own.
Prints one JSON object: each scenario's name, and the traceback of those that failed, else null.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

from sgl_npu_patch.simulator import device, extension, torch_npu
from sgl_npu_patch.simulator.device import cpu, npu
from sgl_npu_patch.simulator.sglang import Execution

ROWS = 3
PRODUCTS = frozenset({"npu_mm_batch_invariant", "npu_matmul_batch_invariant"})
MEAN = frozenset({"npu_reduce_mean_batch_invariant"})
LOG_SOFTMAX = frozenset({"npu_log_softmax_batch_invariant"})
ATTENTION = "npu_fused_infer_attention_score"
BATCH_INVARIANT_ATTENTION = f"{ATTENTION}_batch_invariant"
BATCH_INVARIANT_WORKSPACE = f"_{BATCH_INVARIANT_ATTENTION}_get_max_workspace"
WORKSPACE = f"_{ATTENTION}_get_max_workspace"
REBOUND = (ATTENTION, WORKSPACE, "npu_add_rms_norm")

CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@dataclass
class Machine:
    """The executed module and what stands around it."""

    execution: Execution
    mode: ModuleType
    torch_npu: ModuleType

    @property
    def takes_bmm(self) -> bool:
        return "enable_bmm" in self.mode.enable_batch_invariant_mode.__code__.co_varnames

    def rebound(self) -> dict[str, object]:
        """Return the very objects that a caller of each attribute would get."""
        return {
            f"{namespace.__name__}.{name}": getattr(namespace, name)
            for namespace in (torch.ops.npu, self.torch_npu)
            for name in REBOUND
        }


@dataclass(frozen=True)
class Operation:
    """A call whose result has one row for each row of the input.

    `reaches` are the extension's operators that may do it, none if it is done by operators of
    torch_npu that are batch-invariant by themselves.
    """

    call: Callable[[Machine, torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    reaches: frozenset[str]
    dtype: torch.dtype = torch.float32


def _random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def _weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return npu(_random(shape, len(shape) + sum(shape), dtype))


def _parameter(*shape: int) -> torch.Tensor:
    """Make a weight as a module holds it: it asks for gradients, whatever the mode."""
    return _weight(*shape).requires_grad_()


def _linear(bias: bool) -> Callable[[Machine, torch.Tensor], torch.Tensor]:
    def call(machine: Machine, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, _parameter(8, 16), _parameter(8) if bias else None)

    return call


def _addmm(machine: Machine, x: torch.Tensor) -> torch.Tensor:
    return torch.addmm(_weight(8), x, _weight(16, 8), beta=0.5, alpha=2.0)


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


def _attention(
    namespace: str, overload: str = ""
) -> Callable[[Machine, torch.Tensor], torch.Tensor]:
    def call(machine: Machine, x: torch.Tensor) -> torch.Tensor:
        owner = torch.ops.npu if namespace == "ops" else machine.torch_npu
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

    return call


def _add_rms_norm(namespace: str, output: int) -> Callable[[Machine, torch.Tensor], torch.Tensor]:
    def call(machine: Machine, x: torch.Tensor) -> torch.Tensor:
        owner = torch.ops.npu if namespace == "ops" else machine.torch_npu
        results = owner.npu_add_rms_norm(x, x * 0.5, _weight(16), 1e-5)
        result: torch.Tensor = results[output]
        return result

    return call


OPERATIONS = {
    "mm": Operation(lambda m, x: torch.mm(x, _weight(16, 8)), (16,), PRODUCTS),
    "mm-transposed": Operation(lambda m, x: torch.mm(x, _weight(8, 16).t()), (16,), PRODUCTS),
    "mm-bfloat16": Operation(
        lambda m, x: torch.mm(x, _weight(16, 8, dtype=torch.bfloat16)),
        (16,),
        PRODUCTS,
        torch.bfloat16,
    ),
    "matmul-2d": Operation(lambda m, x: x @ _weight(16, 8), (16,), PRODUCTS),
    "matmul-3d": Operation(lambda m, x: x @ _weight(16, 8), (3, 16), PRODUCTS),
    "matmul-batched": Operation(
        lambda m, x: x @ _weight(1, 16, 8).expand(x.shape[0], 16, 8), (3, 16), PRODUCTS
    ),
    "matmul-4d": Operation(lambda m, x: x @ _weight(16, 8), (2, 3, 16), PRODUCTS),
    "linear-2d": Operation(_linear(bias=False), (16,), PRODUCTS),
    "linear-3d": Operation(_linear(bias=False), (3, 16), PRODUCTS),
    "linear-bias-2d": Operation(_linear(bias=True), (16,), PRODUCTS),
    "linear-bias-3d": Operation(_linear(bias=True), (3, 16), PRODUCTS),
    "addmm-scaled": Operation(_addmm, (16,), PRODUCTS),
    "bmm": Operation(
        lambda m, x: torch.bmm(x, _weight(1, 16, 8).expand(x.shape[0], 16, 8)), (3, 16), PRODUCTS
    ),
    "mean-last": Operation(lambda m, x: x.mean(-1), (16,), MEAN),
    "mean-keepdim": Operation(lambda m, x: x.mean(-1, keepdim=True), (16,), MEAN),
    "mean-middle": Operation(lambda m, x: x.mean(1), (4, 6), MEAN),
    "mean-two": Operation(lambda m, x: x.mean((1, -1)), (4, 3, 6), MEAN),
    "mean-two-bfloat16": Operation(
        lambda m, x: x.mean((1, 2), keepdim=True), (4, 6), MEAN, torch.bfloat16
    ),
    "mean-to-float32": Operation(
        lambda m, x: x.mean(-1, dtype=torch.float32), (16,), MEAN, torch.bfloat16
    ),
    "log-softmax": Operation(lambda m, x: torch.log_softmax(x, -1), (16,), LOG_SOFTMAX),
    "log-softmax-middle": Operation(lambda m, x: torch.log_softmax(x, 1), (4, 6), LOG_SOFTMAX),
    "log-softmax-to-float32": Operation(
        lambda m, x: torch.log_softmax(x, -1, dtype=torch.float32),
        (16,),
        LOG_SOFTMAX,
        torch.bfloat16,
    ),
    **{
        f"attention-{namespace}{'-' * bool(overload)}{overload}": Operation(
            _attention(namespace, overload), (9, 16), frozenset({BATCH_INVARIANT_ATTENTION})
        )
        for namespace in ("ops", "torch_npu")
        for overload in ("", "default", "out")
    },
    "add-rms-norm-normed": Operation(_add_rms_norm("torch_npu", 0), (16,), frozenset()),
    "add-rms-norm-rstd": Operation(_add_rms_norm("torch_npu", 1), (16,), frozenset()),
    "add-rms-norm-3d": Operation(_add_rms_norm("torch_npu", 0), (3, 16), frozenset()),
    "add-rms-norm-ops": Operation(_add_rms_norm("ops", 0), (16,), frozenset()),
}

Scenario = Callable[[Machine], None]
SCENARIOS: dict[str, Scenario] = {}
ONLY_VERSION_1 = ("attention_without_out_is_an_error_that_says_so",)
NEEDS_VERSION_2 = ("attention-ops-out", "attention-torch_npu-out")


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def _operation_scenario(name: str, context: str) -> Scenario:
    operation = OPERATIONS[name]

    def run(machine: Machine) -> None:
        with CONTEXTS[context]():
            batch = npu(_random((ROWS, *operation.shape), 1, operation.dtype))
            expected = _expected(machine, operation, batch)
            before = machine.rebound()
            assert_native(machine, operation, batch)
            with enabled(machine):
                assert_batch_invariant(machine, operation, batch, expected)
            assert_native(machine, operation, batch)
            assert_same(before, machine.rebound())

    return run


def _expected(machine: Machine, operation: Operation, batch: torch.Tensor) -> torch.Tensor:
    """Return the native result: right up to its last bits, and in aten's shape and dtype."""
    return cpu(operation.call(machine, batch)).clone()


def _alone(machine: Machine, operation: Operation, batch: torch.Tensor) -> torch.Tensor:
    rows = [cpu(operation.call(machine, batch[i : i + 1])) for i in range(ROWS)]
    return torch.cat(rows)


def assert_batch_invariant(
    machine: Machine,
    operation: Operation,
    batch: torch.Tensor,
    expected: torch.Tensor | None = None,
) -> None:
    extension.calls.clear()
    torch_npu.native_calls.clear()
    together = cpu(operation.call(machine, batch)).clone()
    reached = {call.operator.partition(".")[0] for call in extension.calls}
    if operation.reaches:
        assert reached - {BATCH_INVARIANT_WORKSPACE} <= operation.reaches, f"reached {reached}"
        assert operation.reaches & reached, "nothing of the extension is reached"
    assert not {ATTENTION, f"{ATTENTION}.out", "npu_add_rms_norm"} & {*torch_npu.native_calls}
    alone = _alone(machine, operation, batch)
    assert torch.equal(alone, together), "a row differs alone and in a batch"
    if expected is not None:
        assert together.dtype == expected.dtype, f"{together.dtype}, not {expected.dtype}"
        assert together.shape == expected.shape, f"{together.shape}, not {expected.shape}"
        tolerance = 4e-2 if together.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(together, expected, rtol=tolerance, atol=tolerance)


def assert_native(machine: Machine, operation: Operation, batch: torch.Tensor) -> None:
    extension.calls.clear()
    together = cpu(operation.call(machine, batch)).clone()
    assert not extension.calls, f"{extension.calls[0].operator} is still reached"
    alone = _alone(machine, operation, batch)
    assert not torch.equal(alone, together), "the simulated device hides the batch"


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    changed = [name for name, value in before.items() if after[name] is not value]
    assert not changed, f"not the objects of before: {changed}"


def assert_on(machine: Machine, *, bmm: bool = True) -> None:
    """Assert that the whole mode works, by one operation of each kind."""
    assert machine.mode.is_batch_invariant_mode_enabled()
    names = ["mm", "linear-bias-2d", "mean-last", "log-softmax"]
    names += ["attention-ops", "attention-torch_npu", "add-rms-norm-normed"]
    with torch.no_grad():
        for name in [*names, "bmm"]:
            operation = OPERATIONS[name]
            batch = npu(_random((ROWS, *operation.shape), 1))
            check = assert_native if name == "bmm" and not bmm else assert_batch_invariant
            check(machine, operation, batch)


def assert_off(machine: Machine, before: dict[str, object]) -> None:
    assert not machine.mode.is_batch_invariant_mode_enabled()
    assert_same(before, machine.rebound())
    with torch.no_grad():
        for name in ("mm", "linear-bias-2d", "bmm", "mean-last", "log-softmax"):
            operation = OPERATIONS[name]
            assert_native(machine, operation, npu(_random((ROWS, *operation.shape), 1)))


SCENARIOS.update(
    {
        f"{name}[{context}]": _operation_scenario(name, context)
        for name in OPERATIONS
        for context in CONTEXTS
    }
)


@scenario
def mean_over_everything(machine: Machine) -> None:
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.mean(),
        lambda x: x.mean(dim=[]),
        lambda x: x.mean((0, 1)),
        lambda x: x.mean(dim=None, keepdim=True),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        host = _random((3, 4), 1, dtype)
        for call in calls:
            expected = call(host)
            with torch.no_grad(), enabled(machine):
                extension.calls.clear()
                result = cpu(call(npu(host)))
                assert extension.called(*MEAN), "not reached"
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


@scenario
def mean_of_integers_is_an_error(machine: Machine) -> None:
    host = torch.arange(12).reshape(3, 4)
    with torch.no_grad(), enabled(machine):
        error = error_of(lambda: npu(host).mean(-1))
        assert "floating point" in str(error), error
        result = cpu(npu(host).mean(-1, dtype=torch.float32))
    torch.testing.assert_close(result, host.float().mean(-1))


@scenario
def add_rms_norm_returns_what_the_operator_does(machine: Machine) -> None:
    x, y = (npu(_random((ROWS, 16), seed)) for seed in (1, 2))
    gamma = _weight(16)
    expected = machine.torch_npu.npu_add_rms_norm(x, y, gamma, 1e-5)
    by_default = machine.torch_npu.npu_add_rms_norm(x, y, gamma)
    with enabled(machine):
        operator = machine.torch_npu.npu_add_rms_norm
        results = [
            (operator(x, y, gamma, 1e-5), expected),
            (operator(x1=x, x2=y, gamma=gamma, epsilon=1e-5), expected),
            (operator(x, y, gamma), by_default),
        ]
    for given, wanted in results:
        assert len(given) == 3
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(cpu(one), cpu(other), rtol=1e-5, atol=1e-5)


@scenario
def attention_without_out_is_an_error_that_says_so(machine: Machine) -> None:
    """And never the native kernel in silence."""
    with enabled(machine):
        for name in NEEDS_VERSION_2:
            torch_npu.native_calls.clear()
            operation = OPERATIONS[name]
            batch = npu(_random((ROWS, *operation.shape), 1))
            error = error_of(partial(operation.call, machine, batch))
            assert "2.0.0" in str(error), error
            assert not torch_npu.native_calls


@scenario
def a_second_enable_changes_nothing(machine: Machine) -> None:
    before = machine.rebound()
    with enabled(machine):
        during = machine.rebound()
        registered = recorded(machine.mode.enable_batch_invariant_mode)
        assert not registered, registered
        assert_same(during, machine.rebound())
        assert_on(machine)
    assert_off(machine, before)


@scenario
def on_off_on_off(machine: Machine) -> None:
    before = machine.rebound()
    for _ in range(3):
        machine.mode.enable_batch_invariant_mode()
        assert_on(machine)
        machine.mode.disable_batch_invariant_mode()
        assert_off(machine, before)
    machine.mode.disable_batch_invariant_mode()
    assert_off(machine, before)


@scenario
def without_bmm(machine: Machine) -> None:
    if not machine.takes_bmm:
        return
    before = machine.rebound()
    machine.mode.enable_batch_invariant_mode(enable_bmm=False)
    assert_on(machine, bmm=False)
    for inside in (True, False):
        with machine.mode.set_batch_invariant_mode(inside):
            pass
        assert_on(machine, bmm=False)
    machine.mode.disable_batch_invariant_mode()
    assert_off(machine, before)
    machine.mode.enable_batch_invariant_mode(enable_bmm=True)
    assert_on(machine)
    machine.mode.disable_batch_invariant_mode()
    assert_off(machine, before)


@scenario
def scoped(machine: Machine) -> None:
    before = machine.rebound()
    with machine.mode.set_batch_invariant_mode():
        assert_on(machine)
    assert_off(machine, before)
    with machine.mode.set_batch_invariant_mode(False):
        assert_off(machine, before)
    assert_off(machine, before)


@scenario
def scoped_and_left_by_an_exception(machine: Machine) -> None:
    before = machine.rebound()
    for start in (False, True):
        for inside in (False, True):
            if start:
                machine.mode.enable_batch_invariant_mode()
            try:
                with machine.mode.set_batch_invariant_mode(inside):
                    raise KeyError("of the test")
            except KeyError:
                pass
            if start:
                assert_on(machine)
                machine.mode.disable_batch_invariant_mode()
            assert_off(machine, before)


@scenario
def scoped_inside_an_enabled_mode(machine: Machine) -> None:
    before = machine.rebound()
    with enabled(machine):
        during = machine.rebound()
        with machine.mode.set_batch_invariant_mode(True):
            assert_on(machine)
            with machine.mode.set_batch_invariant_mode(True):
                pass
            assert_on(machine)
        assert_on(machine)
        assert_same(during, machine.rebound())
    assert_off(machine, before)


@scenario
def switched_off_inside_an_enabled_mode(machine: Machine) -> None:
    before = machine.rebound()
    with enabled(machine):
        with machine.mode.set_batch_invariant_mode(False):
            assert_off(machine, before)
            with machine.mode.set_batch_invariant_mode(True):
                assert_on(machine)
            assert_off(machine, before)
        assert_on(machine)
    assert_off(machine, before)


@scenario
def a_wrapper_of_torch_npu_itself_comes_back(machine: Machine) -> None:
    """torch_npu replaces operators by Python functions too; those are what was there."""
    originals = machine.rebound()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return originals["torch_npu.npu_add_rms_norm"](*args, **kwargs)  # type: ignore[operator]

    machine.torch_npu.__dict__["npu_add_rms_norm"] = wrapper
    try:
        with enabled(machine):
            assert machine.torch_npu.npu_add_rms_norm is not wrapper
        assert machine.torch_npu.npu_add_rms_norm is wrapper
    finally:
        machine.torch_npu.__dict__["npu_add_rms_norm"] = originals["torch_npu.npu_add_rms_norm"]


@scenario
def nothing_of_the_cuda_set_is_registered(machine: Machine) -> None:
    bmm = torch.bmm
    registered = recorded(machine.mode.enable_batch_invariant_mode)
    try:
        assert torch.bmm is bmm
        names = [name.removeprefix("aten::") for name, _, _ in registered]
        assert len(names) == len(set(names))
        assert {"mm", "addmm", "matmul", "mean.dim", "_log_softmax"} <= {*names}
        assert not {*names} & {"rms_norm", "mm.dtype", "mm.out"}
        assert "bmm" in names
        for name, function, key in registered:
            assert key == "NPU", (name, key)
            owner = getattr(function, "__module__", "")
            assert owner.startswith("sglang.srt.hardware_backend.npu"), (name, owner)
    finally:
        machine.mode.disable_batch_invariant_mode()
    assert torch.bmm is bmm


def error_of(call: Callable[[], Any]) -> Exception:
    """Return the error that a call ends in, which it must."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("no error")


def recorded(call: Callable[[], None]) -> list[tuple[str, Any, str]]:
    """Return what a call registers with torch's dispatcher."""
    seen: list[tuple[str, Any, str]] = []
    original: Any = torch.library.Library.impl

    def impl(library: Any, name: Any, function: Any, key: str = "", **options: Any) -> Any:
        seen.append((str(name), function, key))
        return original(library, name, function, key, **options)

    library: Any = torch.library.Library
    library.impl = impl
    try:
        call()
    finally:
        library.impl = original
    return seen


@contextmanager
def enabled(machine: Machine) -> Iterator[None]:
    machine.mode.enable_batch_invariant_mode()
    try:
        yield
    finally:
        machine.mode.disable_batch_invariant_mode()


MISSING: dict[str, Scenario] = {}


def without_extension(function: Scenario) -> Scenario:
    MISSING[function.__name__] = function
    return function


@without_extension
def enabling_says_what_is_missing(machine: Machine) -> None:
    for _ in range(2):
        error = error_of(machine.mode.enable_batch_invariant_mode)
        assert "npu_mm_batch_invariant" in str(error), error


@without_extension
def a_mode_that_could_not_be_entered_is_off(machine: Machine) -> None:
    before = machine.rebound()
    for enter in (
        machine.mode.enable_batch_invariant_mode,
        machine.mode.set_batch_invariant_mode().__enter__,
    ):
        error_of(enter)
        assert_off(machine, before)


def applicable(version: str) -> list[str]:
    """Return the names of the scenarios that a machine with that extension is put through."""
    if version in ("none", "another"):
        return [*MISSING]
    if version == "2.0.0":
        return [name for name in SCENARIOS if name not in ONLY_VERSION_1]
    return [name for name in SCENARIOS if name.partition("[")[0] not in NEEDS_VERSION_2]


def main(tree: str, version: str, torch_npu_version: str, *only: str) -> dict[str, str | None]:
    """Run what applies to that version of the extension, or only the scenarios named."""
    # Starting threads costs more than these tensors do.
    torch.set_num_threads(1)
    device.install()
    fake = torch_npu.install(torch_npu_version)
    submodule = ModuleType("torch_npu.npu")
    submodule.__dict__.update(vars(fake.npu))
    provide: dict[str, Any] = {"torch_npu": fake, "torch_npu.npu": submodule}
    if version == "another":
        # The package of Thinking Machines: the same import name and none of the operators.
        provide["batch_invariant_ops"] = ModuleType("batch_invariant_ops")
    elif version != "none":
        provide["batch_invariant_ops"] = extension.install(version, torch_npu_version)  # type: ignore[arg-type]
    results: dict[str, str | None] = {}
    with Execution(Path(tree), "npu", provide) as execution:
        mode = execution.load("sglang.srt.batch_invariant_ops.batch_invariant_ops")
        machine = Machine(execution, mode, fake)
        originals = machine.rebound()
        for name in only or applicable(version):
            results[name] = _failure_of({**SCENARIOS, **MISSING}[name], machine)
            _clean(machine, originals)
    return results


def _failure_of(run: Scenario, machine: Machine) -> str | None:
    try:
        run(machine)
    except Exception:  # noqa: BLE001
        return traceback.format_exc()
    return None


def _clean(machine: Machine, originals: dict[str, object]) -> None:
    """Take back what a scenario that failed left behind."""
    machine.mode.disable_batch_invariant_mode()
    for name, value in originals.items():
        owner = machine.torch_npu if name.startswith("torch_npu.") else torch.ops.npu
        setattr(owner, name.rpartition(".")[2], value)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
