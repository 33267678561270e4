"""Collect what decides whether this machine can run SGLang's deterministic mode on an NPU."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

OK, WRONG, UNSEEN, NOTE = "ok", "wrong", "unseen", "note"
"""Verdicts: as it must be; breaks the result; not to be told here; breaks nothing."""

GROUPS = (
    "python", "torch", "torch_npu", "cann", "device", "extension", "schemas", "dispatch",
    "environment", "sampler", "tree",
)  # fmt: skip
"""What facts are about, in the order in which they are told."""

EXTENSION = "batch_invariant_ops"
ATTENTION = "npu_fused_infer_attention_score"
WORKSPACE = f"_{ATTENTION}_get_max_workspace"
ADD_RMS_NORM = "npu_add_rms_norm"
REBOUND = (ATTENTION, WORKSPACE, ADD_RMS_NORM)

REQUIRED = (
    "npu_mm_batch_invariant",
    "npu_matmul_batch_invariant",
    "npu_reduce_mean_batch_invariant",
    "npu_log_softmax_batch_invariant",
    f"{ATTENTION}_batch_invariant",
)
FOR_GRAPHS = (
    f"{ATTENTION}_batch_invariant.out",
    f"_{ATTENTION}_batch_invariant_get_max_workspace",
    f"_{ATTENTION}_batch_invariant_infer_output",
)
"""What version 2.0.0 of the extension adds, without which graphs stay off."""

ATEN = (
    "mm", "matmul", "addmm", "bmm", "mean", "mean.dim", "_log_softmax", "_softmax", "sum",
    "sum.dim_IntList",
)  # fmt: skip
"""The operators of aten whose kernels are told; the mode registers further overloads of them."""

OPERATORS = (
    "mm", "matmul", "addmm", "bmm", "mean", "mean.dim", "log_softmax", "fused_attention",
    "add_rms_norm",
)  # fmt: skip
"""What is compared bit by bit."""

PASSED = frozenset(
    {
        "query", "key", "value", "num_heads", "input_layout", "scale", "num_key_value_heads",
        "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "block_size", "sparse_mode",
        "atten_mask", "query_rope", "key_rope", "antiquant_mode", "antiquant_scale",
        "kv_padding_size", "next_tokens", "softmax_lse_flag", "workspace", "out",
    }
)  # fmt: skip
"""The arguments of the fused attention that some release of SGLang passes."""

_PRODUCTS = frozenset({"npu_mm_batch_invariant", "npu_matmul_batch_invariant"})
_LOG_SOFTMAX = frozenset({"npu_log_softmax_batch_invariant"})
_LAYERS: Mapping[str, tuple[frozenset[str], Callable[[Any, Any, Any], Any]]] = {
    "linear": (_PRODUCTS, lambda torch, x, w: torch.nn.functional.linear(x, w)),
    "linear_with_bias": (_PRODUCTS, lambda torch, x, w: torch.nn.functional.linear(x, w, w[:, 0])),
    "logits": (_PRODUCTS, lambda torch, x, w: torch.matmul(x, w.T)),
    "log_softmax": (_LOG_SOFTMAX, lambda torch, x, w: torch.log_softmax(x, dim=-1)),
}
"""What SGLang's layers call in a forward pass, and of which operators they must reach one."""

_KEY = "PrivateUse1"
"""What the dispatcher calls the NPU."""
_LONGEST = 160
"""How much of an error's message is told."""
_INSTALL = (
    "install Ascend's extension: the AscendC operator package for the chip (A2: 910b, A3: 910_93) "
    "and the PyTorch extension, which is built from source; neither is on PyPI"
)
_CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_FILES = (
    "ascend_toolkit_install.info",
    "*-linux/ascend_toolkit_install.info",
    "version.cfg",
    "compiler/version.info",
)
_CANN_VERSION = re.compile(
    r"^(?:version|Version|\w*running_version)\s*=\s*\[?(?:[\d.]+:)?([\w.]+)\]?\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class Fact:
    """Say one thing about the machine.

    Attributes:
        id: a group and a name in it, such as ``environment.ASCEND_USE_FIA``.
        verdict: one of the four above.
        found: what was found.
        action: what to do about it.
    """

    id: str
    verdict: str
    found: str
    action: str = ""


@dataclass
class Seen:
    """Hold all that was found, without a name of the host, of a folder or of a user."""

    facts: list[Fact] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    chip: str = ""

    def tell(self, name: str, verdict: str, found: str, action: str = "") -> None:
        """Add a fact."""
        self.facts.append(Fact(name, verdict, found, action))


Mode = Callable[[], AbstractContextManager[None]]
"""Enters the batch-invariant mode and leaves it again."""


class Variable(Protocol):
    """A variable of the server's environment, as launch_guards describes it."""

    wanted: str | None
    purpose: str
    instead: str

    def suits(self, value: str) -> bool:
        """Report whether a value, the empty string for unset, will do."""
        ...


def collect(mode: Mode, environment: Mapping[str, Variable], *, guarded: bool = True) -> Seen:
    """Look at everything; no error of what is looked at ends it.

    Args:
        mode: is entered once, to see what it changes.
        environment: the server's variables, by name.
        guarded: the server sets them by itself.
    """
    seen = Seen()
    seen.versions["python"] = platform.python_version()
    seen.tell("python.version", OK, platform.python_version())
    # Else a torch_npu that is broken would look like a broken torch.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    torch = _imported(seen, "torch")
    torch_npu = _imported(seen, "torch_npu") if torch else None
    device = False
    if not torch_npu:
        needed = "torch_npu" if torch else "torch"
        for name in (
            "device.available",
            "extension.package",
            "schemas.compared",
            "dispatch.enable",
        ):
            seen.tell(name, UNSEEN, f"needs {needed}, which cannot be imported")
    else:
        made_for, found = (".".join(m.__version__.split(".")[:2]) for m in (torch_npu, torch))
        if made_for != found:
            seen.tell("torch_npu.torch", NOTE, f"made for torch {made_for}, and torch is {found}")
        device = _device(seen, torch)
        _extension(seen, torch)
        _schemas(seen, torch)
        if _dispatch(seen, torch, torch_npu, mode):
            _layers(seen, torch, mode, device)
    # Where a device answers, CANN is there, whatever its version.
    _cann(seen, NOTE if device else UNSEEN)
    _environment(seen, environment, guarded=guarded)
    for name in ("float64", "uint64"):
        if device:
            _sampler(seen, torch, name)
        else:
            seen.tell(f"sampler.{name}", UNSEEN, "needs a device")
    seen.facts.sort(key=lambda fact: GROUPS.index(fact.id.partition(".")[0]))
    return seen


def brief(error: BaseException) -> str:
    """Tell an error in one line without paths, which name hosts and users."""
    line = (str(error).strip().splitlines() or [""])[0]
    line = " ".join("..." if re.search(r"[/\\]\w", word) else word for word in line.split())
    for name in (platform.node(), os.environ.get("USER", ""), os.environ.get("LOGNAME", "")):
        if name:
            line = re.sub(rf"\b{re.escape(name)}\b", "...", line)
    told = f"{type(error).__name__}: {line}".removesuffix(": ")
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."


def _imported(seen: Seen, name: str) -> Any:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  # a broken installation may raise anything
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        found = "not installed" if absent else brief(error)
        action = f"{'install' if absent else 'repair'} {name} in this Python"
        seen.tell(f"{name}.import", WRONG, found, action)
        return None
    version = str(getattr(module, "__version__", "of unknown version"))
    seen.versions[name] = version
    seen.tell(f"{name}.import", OK, version)
    return module


def _cann(seen: Seen, unknown: str) -> None:
    homes = {name: os.environ[name] for name in _CANN_HOMES if os.environ.get(name)}
    if not homes:
        seen.tell(
            "cann.version",
            unknown,
            f"neither {' nor '.join(_CANN_HOMES)} is set",
            "source set_env.sh of the CANN toolkit",
        )
        return
    for name, home in homes.items():
        for pattern in _CANN_FILES:
            for path in sorted(Path(home).glob(pattern)):
                with suppress(OSError):
                    version = _CANN_VERSION.search(path.read_text("utf-8", "replace"))
                    if version:
                        seen.versions["cann"] = version[1]
                        seen.tell("cann.version", OK, f"{version[1]} (by {path.name} in {name})")
                        return
    names = " and ".join(homes)
    seen.tell("cann.version", unknown, f"no file in {names} says which", "reinstall the toolkit")


def _device(seen: Seen, torch: Any) -> bool:
    try:
        if torch.npu.is_available():
            seen.chip = str(torch.npu.get_device_name(0))
            count = torch.npu.device_count()
            seen.tell("device.available", OK, f"{count} x {seen.chip}")
            return True
        found = "no NPU is visible to this process"
    except Exception as error:  # noqa: BLE001
        found = brief(error)
    seen.tell("device.available", UNSEEN, found, "run it on a machine with an NPU")
    return False


def _operator(torch: Any, namespace: str, name: str) -> Any:
    """Return an operator's packet, or one overload of it, or None."""
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload, None) if overload and found is not None else found


def _extension(seen: Seen, torch: Any) -> None:
    module, failure = None, ""
    try:
        module = importlib.import_module(EXTENSION)
    except ModuleNotFoundError:
        failure = "not installed"
    except Exception as error:  # noqa: BLE001  # another package of this name may raise anything
        failure = brief(error)
    missing = [name for name in REQUIRED if _operator(torch, EXTENSION, name) is None]
    newer = [name for name in FOR_GRAPHS if _operator(torch, EXTENSION, name) is not None]
    if len(missing) == len(REQUIRED) and module is not None:
        whose = "another package of that import name"
        if hasattr(module, "set_batch_invariant_mode"):
            whose = "Thinking Machines' package of that import name"
        seen.tell(
            "extension.package",
            WRONG,
            f"{whose}{_distribution()}: it registers none of the operators",
            f"uninstall it and {_INSTALL}",
        )
    elif failure and missing:
        seen.tell("extension.package", WRONG, f"{failure}{_distribution()}", _INSTALL)
    else:
        version = str(getattr(module, "__version__", "") or _version() or "unknown")
        like = "2.0.0" if len(newer) == len(FOR_GRAPHS) else "1.0.0"
        seen.versions[EXTENSION] = version
        seen.tell("extension.package", OK, f"version {version}, with the operators of {like}")
    for name in REQUIRED:
        found = _operator(torch, EXTENSION, name)
        if found is None:
            action = _INSTALL if len(missing) < len(REQUIRED) else ""
            seen.tell(f"extension.{name}", WRONG, "missing", action)
        else:
            overloads = " ".join(map(str, found.overloads()))
            seen.tell(f"extension.{name}", OK, f"overloads: {overloads}")
    for name in FOR_GRAPHS:
        there = name in newer
        found_text = "there" if there else "missing: graphs stay off; version 2.0.0 has it"
        seen.tell(f"extension.{name}", OK if there else NOTE, found_text)


def _distributions() -> list[str]:
    return importlib.metadata.packages_distributions().get(EXTENSION, [])


def _distribution() -> str:
    names = _distributions()
    return f" (distribution {', '.join(sorted(set(names)))})" if names else ""


def _version() -> str:
    for name in _distributions():
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _schemas(seen: Seen, torch: Any) -> None:
    """Compare what is rebound with what it replaces, argument by argument."""
    pairs = (
        (ATTENTION, f"{ATTENTION}_batch_invariant"),
        (WORKSPACE, f"_{ATTENTION}_batch_invariant_get_max_workspace"),
    )
    for native_name, name in pairs:
        native = _operator(torch, "npu", native_name)
        if native is None:
            verdict = WRONG if native_name == ATTENTION else NOTE
            seen.tell(f"schemas.{native_name}", verdict, "torch_npu does not have it")
            continue
        for overload in native.overloads():
            which = f"{native_name}.{overload}"
            replacement = _operator(torch, EXTENSION, f"{name}.{overload}")
            if replacement is None:
                needed = name in REQUIRED and overload == "default"
                found = "the extension does not have it: to call it is an error"
                seen.tell(f"schemas.{which}", WRONG if needed else NOTE, found)
                continue
            original = getattr(native, overload)
            breaking, harmless = _differences(original._schema, replacement._schema)
            told = "; ".join(breaking + harmless) or "the replacement takes the same arguments"
            verdict = WRONG if breaking else NOTE if harmless else OK
            action = "install versions of torch_npu and the extension that were made for each other"
            seen.tell(f"schemas.{which}", verdict, told, action if breaking else "")


def _differences(native: Any, replacement: Any) -> tuple[list[str], list[str]]:
    """Tell what breaks a call that SGLang makes, and what no call meets."""
    ours = {argument.name: argument for argument in replacement.arguments}
    theirs = {argument.name: argument for argument in native.arguments}
    breaking: list[str] = []
    harmless: list[str] = []
    for name, argument in theirs.items():
        where = breaking if name in PASSED else harmless
        other = ours.get(name)
        if other is None:
            where.append(f"the replacement does not take {name}")
        elif _form(other) != _form(argument):
            where.append(f"{name} is {_form(argument)}, in the replacement {_form(other)}")
    for name, argument in ours.items():
        if name not in theirs and not argument.has_default_value():
            breaking.append(f"the replacement demands {name}")
    positional = [
        [a.name for a in each.arguments if not a.kwarg_only] for each in (native, replacement)
    ]
    if positional[0] != positional[1][: len(positional[0])]:
        breaking.append(f"the order is {', '.join(positional[0])}, in the replacement another")
    return breaking, harmless


def _form(argument: Any) -> str:
    """Give type and default of an argument; whether a number is symbolic shows in no call."""
    kind = str(argument.type).replace("SymInt", "int")
    default = f"={argument.default_value!r}" if argument.has_default_value() else ""
    return f"{kind}{default}{' (keyword)' if argument.kwarg_only else ''}"


def _dispatch(seen: Seen, torch: Any, torch_npu: Any, mode: Mode) -> bool:
    """See that every operator is another one in the mode; report whether it can be entered."""
    before, objects = _rows(torch), dict(_attributes(torch, torch_npu))
    try:
        with mode():
            inside, replaced = _rows(torch), dict(_attributes(torch, torch_npu))
            norm = _norm_differs(torch, torch_npu, objects)
    except Exception as error:  # noqa: BLE001
        seen.tell("dispatch.enable", WRONG, brief(error), "see what is wrong with the extension")
        return False
    after, left = _rows(torch), dict(_attributes(torch, torch_npu))
    seen.tell("dispatch.enable", OK, "the mode can be entered and left")
    for name in ATEN:
        told = f"{before[name]}, in the mode {inside[name]}"
        if inside[name] == before[name]:
            seen.tell(f"dispatch.aten::{name}", WRONG, f"{before[name]}, in the mode the same")
        elif after[name] != before[name]:
            seen.tell(f"dispatch.aten::{name}", NOTE, f"{told}, left {after[name]}")
        else:
            seen.tell(f"dispatch.aten::{name}", OK, told)
    if any(_has_kernel(torch, "aten::linear", key) for key in (_KEY, f"Autograd{_KEY}")):
        told = "torch_npu has a kernel of its own, which may pass by the products that are replaced"
        seen.tell("dispatch.aten::linear", NOTE, told, "let the kit compare linear layers")
    for name, original in objects.items():
        if replaced.get(name) is original:
            seen.tell(f"dispatch.{name}", WRONG, "in the mode it is the original operator")
        elif left.get(name) is not original:
            seen.tell(f"dispatch.{name}", NOTE, "replaced, and leaving does not give it back")
        else:
            seen.tell(f"dispatch.{name}", OK, "replaced in the mode, and given back")
    seen.tell(
        f"schemas.{ADD_RMS_NORM}", WRONG if norm else OK, norm or "it takes the same arguments"
    )
    return True


def _layers(seen: Seen, torch: Any, mode: Mode, device: bool) -> None:
    """Run a server's layers forward in the mode, and see that each calls what replaces it.

    The dispatcher's table cannot tell: a device may have one kernel for a whole layer, which calls
    none of the operators in it.
    """
    if not device:
        seen.tell("dispatch.layers", UNSEEN, "needs a device")
        return
    for name, (needed, layer) in _LAYERS.items():
        fact = f"dispatch.layers.{name}"
        try:
            with _called(torch) as calls, mode():
                tokens, weight = (torch.ones(2, 8, dtype=torch.bfloat16).to("npu") for _ in "xw")
                # Releases run their model in one or the other.
                for context in (torch.no_grad, torch.inference_mode):
                    calls.append([])
                    with context():
                        layer(torch, tokens, weight)
        except Exception as error:  # noqa: BLE001
            seen.tell(fact, WRONG, brief(error))
            continue
        found = sorted({operator for made in calls for operator in made})
        told = f"calls {', '.join(found)}" if found else "calls no operator of the extension"
        if all(needed & {*made} for made in calls):
            seen.tell(fact, OK, told)
        else:
            why = "deterministic inference is not possible with this torch_npu: report it"
            seen.tell(fact, WRONG, told, why)


@contextmanager
def _called(torch: Any) -> Iterator[list[list[str]]]:
    """Note each call of the extension's products and log-softmax in the last of these lists."""
    calls: list[list[str]] = []
    extension = getattr(torch.ops, EXTENSION)
    operators = {
        name: getattr(extension, name) for name in {*_PRODUCTS, *_LOG_SOFTMAX} & {*vars(extension)}
    }

    def noted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[-1].append(name)
            return operators[name](*args, **kwargs)

        return call

    for name in operators:
        setattr(extension, name, noted(name))
    try:
        yield calls
    finally:
        for name, operator in operators.items():
            setattr(extension, name, operator)


def _rows(torch: Any) -> dict[str, str]:
    """Say of each operator which kernel the dispatcher has for the device, by its file's name."""
    return {name: _row(torch, f"aten::{name}") for name in ATEN}


def _row(torch: Any, operator: str) -> str:
    if not _has_kernel(torch, operator, _KEY):
        return "no kernel of its own"
    for line in torch._C._dispatch_dump_table(operator).splitlines():
        if line.startswith(f"{_KEY}: "):
            place = line.partition("registered at ")[2].partition(" [")[0]
            return (
                f"registered in {PurePath(place).name.partition(':')[0]}" if place else "registered"
            )
    return "registered"


def _has_kernel(torch: Any, operator: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, key))


def _attributes(torch: Any, torch_npu: Any) -> Iterator[tuple[str, object]]:
    for namespace, owner in (("torch.ops.npu", torch.ops.npu), ("torch_npu", torch_npu)):
        for name in REBOUND:
            if hasattr(owner, name):
                yield f"{namespace}.{name}", getattr(owner, name)


def _norm_differs(torch: Any, torch_npu: Any, originals: Mapping[str, object]) -> str:
    native: Any = originals.get(f"torch.ops.npu.{ADD_RMS_NORM}")
    if not hasattr(native, "default"):
        return ""
    names = [argument.name for argument in native.default._schema.arguments]
    ours = list(inspect.signature(getattr(torch_npu, ADD_RMS_NORM)).parameters)
    return (
        "" if names == ours else f"it takes {', '.join(names)}, the replacement {', '.join(ours)}"
    )


def _environment(seen: Seen, environment: Mapping[str, Variable], *, guarded: bool) -> None:
    for name, variable in environment.items():
        fact = f"environment.{name}"
        value = os.environ.get(name, "")
        wanted = "unset" if variable.wanted is None else variable.wanted
        if variable.suits(value):
            seen.tell(fact, OK, f"{value or 'unset'}: {variable.purpose}")
        elif os.environ.get(variable.instead, "").lower() in ("1", "true"):
            told = f"{variable.instead} is set: it counts where the tree's attention reads it"
            seen.tell(fact, NOTE, told)
        elif guarded:
            # Any value could be a path.
            told = f"the server makes it {wanted}; {variable.purpose}"
            given = f"another value: {told}, and warns"
            seen.tell(fact, NOTE if value else OK, given if value else f"unset: {told}")
        else:
            how = f"unset {name}" if variable.wanted is None else f"set {name}={wanted}"
            found = "another value" if value else "unset"
            seen.tell(fact, WRONG, found, f"{how}, so that {variable.purpose}")


def _sampler(seen: Seen, torch: Any, name: str) -> None:
    """Do on the device what a draw with a seed does there, and compare it with the CPU."""
    steps = {"float64": _noise, "uint64": _seeds}
    try:
        with torch.no_grad():
            same = torch.equal(steps[name](torch, "npu").cpu(), steps[name](torch, "cpu"))
    except Exception as error:  # noqa: BLE001
        seen.tell(f"sampler.{name}", WRONG, brief(error), "draws with a seed need it")
        return
    found = "works as on the CPU" if same else "gives something else than the CPU"
    seen.tell(f"sampler.{name}", OK if same else WRONG, found)


def _noise(torch: Any, device: str) -> Any:
    """Draw as the sampler does from hashes; the token is compared, which rounding does not move."""
    hashes = torch.arange(1, 4097).mul(1_048_573).remainder(2**32).reshape(4, 1024)
    x = hashes.to(device).to(torch.float64) / (2**32 - 1)
    x.log_().clamp_(min=torch.finfo(torch.float64).min, max=-(2.0**-32)).neg_().log_().neg_()
    return torch.argmax(x, dim=1, keepdim=True)


def _seeds(torch: Any, device: str) -> Any:
    """Carry seeds as the sampler does, negative ones and such as need more than 32 bits too."""
    seeds = torch.tensor([0, 42, 2**31, 2**40 + 7, -1])
    return seeds.to(device).to(torch.uint64).to(torch.int64)
