"""Run a tree's `_handle_deterministic_inference` on arguments of a check's choice."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from sgl_npu_patch.codemods.upstream import modules, symbols
from sgl_npu_patch.codemods.upstream.symbols import Symbol
from sgl_npu_patch.simulator.modules import find, modules_of, modules_of_class, require
from sgl_npu_patch.simulator.sglang import Device, Execution
from sgl_npu_patch.simulator.stubs import NotGiven
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.findings import NotApplicable

CHOICES, RADIX = symbols.CHOICES, symbols.SUPPORTED
DEEPSEEK = "DeepseekV3ForCausalLM"

_SETTINGS = ("ASCEND_", "ATB_", "CLOSE_", "HCCL_", "LCCL_", "NCCL_", "SGLANG_")
"""How the variables begin that decide what the handler does, whoever set them outside."""

# From 0.5.19 on the arguments are built by msgspec, and only what the handler reads is needed.
_WITHOUT_DATACLASS = {
    "rl_on_policy_target": None,
    "enable_aiter_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": None,
    "disable_radix_cache": False,
    "disable_custom_all_reduce": False,
    "enable_torch_symm_mem": False,
    "disable_cuda_graph": False,
    "enable_torch_compile": False,
    "tp_size": 1,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of the handler left behind.

    `environment` holds the variables that it set, with an empty value those that it unset.
    """

    attributes: dict[str, Any]
    environment: dict[str, str]
    warnings: list[str]
    error: str | None

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def said(self, *words: str) -> list[str]:
        """Return the warnings that hold one of the words, whatever their case."""
        return [text for text in self.warnings if any(word in text.lower() for word in words)]

    def comparable(self) -> Outcome:
        """Return it with the lists of backends taken out of its messages."""

        def clean(text: str) -> str:
            return re.sub(r"[\[(]'[^])]*[])]", "[...]", text)

        return dataclasses.replace(
            self,
            warnings=[clean(text) for text in self.warnings],
            error=None if self.error is None else clean(self.error),
        )


def run(
    execution: Execution, environment: Mapping[str, str] | None = None, /, **chosen: Any
) -> Outcome:
    """Run the handler on the tree's default arguments with the chosen ones over them.

    Args:
        environment: the variables that are set, of those that decide what the handler does.
    """
    arguments = {
        "enable_deterministic_inference": True,
        "attention_backend": "ascend",
        "sampling_backend": "ascend",
        "architecture": "Qwen3ForCausalLM",
        "model_path": "some/model",
        **chosen,
    }
    error = None
    with execution, _settled(environment or {}):
        handler, defaults, owner = _handler(execution)
        args = type("ServerArgs", (_ServerArgs,), {"_owner": owner})(**{**defaults, **arguments})
        args._model_config = args.get_model_config()
        known = set(vars(args))
        before = dict(os.environ)
        args._sealed = owner is None
        with _warnings() as said:
            try:
                handler(args)
            except ValueError as refusal:
                error = str(refusal)
        names = before.keys() | os.environ.keys()
        after = {name: os.environ.get(name, "") for name in names}
        after = {name: value for name, value in after.items() if before.get(name) != value}
    attributes = dict(vars(args))
    for _, declared in attributes.pop("_resolved_overrides", []):
        attributes.update(declared)
    del attributes["_model_config"], attributes["_sealed"]
    added = sorted(set(attributes) - known)
    if added:
        named = ", ".join(added)
        if owner is None and all(_is_argument(execution.package, name) for name in added):
            raise NotApplicable(f"the handler sets {named}, of which this knows no default")
        raise Failed("the handler sets arguments that this tree lacks", found=named)
    return Outcome(attributes, after, said, error)


@cache
def _is_argument(package: Path, name: str) -> bool:
    """Report whether a tree that builds its arguments from parts declares one of that name."""
    declared = re.compile(rf"^\s+{name}\s*:".encode(), re.MULTILINE)
    return any(
        declared.search(file.read_bytes())
        for file in (package / "srt" / "arg_groups").rglob("*.py")
    )


def listed(execution: Execution, symbol: Symbol) -> list[str] | None:
    """Return a list of backends as the tree defines it, None if it does not."""
    if find(execution.package, symbol) is None:
        return None
    with execution:
        _handler(execution)
        value = execution.value(symbol)
    return list(value) if isinstance(value, list | tuple) else None


def graph_config(execution: Execution) -> Any:
    """Return a configuration of graphs as the tree resolves it, every phase on, None without."""
    if find(execution.package, modules.GRAPH_CONFIG) is None:
        return None
    with execution:
        config = execution.value(modules.GRAPH_CONFIG)()
    for phase in vars(config).values():
        phase.backend = "full"
    return config


@cache
def shared_execution(package: Path, device: Device) -> Execution:
    """Return an execution kept for the process: what is said once in it is not said again."""
    return new_execution(package, device)


def new_execution(
    package: Path, device: Device, provide: Mapping[str, ModuleType | None] | None = None
) -> Execution:
    """Return an execution in which the modules of the handler are the tree's own.

    Args:
        provide: what is installed of torch_npu and Ascend's extension, as `Execution` takes it.
    """
    real = modules_of(
        package,
        symbols.HANDLER,
        modules.ENVIRONMENT,
        modules.MODEL_OVERRIDE,
        modules.POST_PROCESS,
        symbols.OVERRIDE,
        symbols.DECLARE,
        modules.GRAPH_CONFIG,
        CHOICES,
        RADIX,
    )
    names: dict[str, object] = {"is_record": lambda _: False, "get_context": _nothing_published}
    arguments = modules_of_class(package, modules.SERVER_ARGS, *symbols.HANDLER.names)
    handler, lists = find(package, symbols.HANDLER), find(package, CHOICES)
    if handler and lists and not {handler.module, lists.module} & {*arguments}:
        # From 0.5.20 on of the module of ServerArgs only the lists matter.
        execution = Execution(package, device, provide, real, names)
        with execution:
            values = vars(execution.load(lists.module))
        names |= {name: given for name, given in values.items() if name.isupper()}
    else:
        real += arguments
    return Execution(package, device, provide, real, names)


class _ServerArgs(SimpleNamespace):
    """Hold the arguments; methods are the tree's, the model configuration is the check's."""

    _owner: ClassVar[type | None] = None

    def __getattr__(self, name: str) -> Any:
        """Bind what the tree's class has besides fields: the handler may be in several parts."""
        if name.startswith("__"):
            raise AttributeError(name)
        if self._owner is None:
            raise NotGiven(f"the handler reads {name}, which it is not given here")
        found = inspect.getattr_static(self._owner, name)
        return found.__get__(self, self._owner) if hasattr(found, "__get__") else found

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what the tree's own arguments refuse, or would not hand on to anybody."""
        if not name.startswith("_") and self.__dict__.get("_sealed"):
            raise AttributeError(f"{name} is assigned, not declared")
        super().__setattr__(name, value)

    def get_model_config(self) -> SimpleNamespace:
        return SimpleNamespace(hf_config=self.get_hf_config())

    def get_hf_config(self) -> SimpleNamespace:
        return SimpleNamespace(architectures=[self.architecture])


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _nothing_published() -> None:
    raise ValueError("nothing is published")


def _handler(execution: Execution) -> tuple[Any, dict[str, Any], type | None]:
    """Load the handler, the defaults of its tree's arguments, and their class if it is needed."""
    if find(execution.package, modules.POST_PROCESS) is not None:
        execution.defining(modules.POST_PROCESS)
    name = require(execution.package, symbols.HANDLER).name
    function = getattr(execution.defining(symbols.HANDLER), name, None)
    if function is not None:
        return function, dict(_WITHOUT_DATACLASS), None
    server_args = execution.value(modules.SERVER_ARGS)
    defaults = {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(server_args)
    }
    return getattr(server_args, name), defaults, server_args


@contextmanager
def _settled(given: Mapping[str, str]) -> Iterator[None]:
    """Settle the variables, and take back what the handler sets."""
    outside = dict(os.environ)
    try:
        for name in outside:
            if name.startswith(_SETTINGS):
                del os.environ[name]
        os.environ.update(given)
        yield
    finally:
        os.environ.clear()
        os.environ.update(outside)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what is logged and warned of, in that order."""
    messages: list[str] = []
    root = logging.getLogger()
    collector = _Collector(messages)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        root.addHandler(collector)
        try:
            yield messages
        finally:
            root.removeHandler(collector)
    messages += [str(warning.message) for warning in caught]
