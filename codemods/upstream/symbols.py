"""List the definitions of SGLang that the series looks for.

Each stands here once: its names, its usual files, and the releases that have each. A definition is
found by its name wherever it stands; the file matters only to what loads a module by its path. A
function that upstream renames gets one more line here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from sgl_npu_patch.engine.text.block import Kind
from sgl_npu_patch.engine.text.fingerprint import Fingerprint, Hint

if TYPE_CHECKING:
    from sgl_npu_patch.engine.view import Spot, View

BODIES = "bodies.json"
"""The fingerprints that each function has had, written by `make refresh`."""
FIRST = "0.5.3rc2"
"""The first release with deterministic inference."""


@dataclass(frozen=True, slots=True)
class Form:
    """One name of a definition in one file, with the first and last release that have it there.

    ``until`` is None where the newest release has it.
    """

    name: str
    file: str
    since: str = FIRST
    until: str | None = None

    @property
    def module(self) -> str:
        """Return the dotted name of the module."""
        return "sglang." + self.file.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function, class or module-level assignment of SGLang, in all its forms, oldest first."""

    kind: Kind
    forms: tuple[Form, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """List every name, oldest first."""
        return tuple(dict.fromkeys(form.name for form in self.forms))

    @property
    def name(self) -> str:
        """Return the newest name."""
        return self.forms[-1].name

    @property
    def modules(self) -> tuple[str, ...]:
        """List the dotted names of the modules, oldest first."""
        return tuple(dict.fromkeys(form.module for form in self.forms))

    def __str__(self) -> str:
        return " or ".join(self.names)

    def find(self, view: View, *, holding: str = "") -> Spot:
        """Find the one definition in a tree, under whichever name.

        Raises:
            AnchorError: there is none, or more than one.
        """
        if self.kind == "assignment":
            return view.find_assignment(*self.names, hint=partial(_hint, self))
        return view.find_function(*self.names, holding=holding, hint=partial(_hint, self))

    def find_caller(self, view: View) -> Spot:
        """Find the one function that calls it, which nothing else in the package uses.

        Raises:
            AnchorError: there is no call or more than one, or the name is used otherwise.
        """
        return view.find_caller(*self.names, hint=partial(_hint, self))

    def is_in(self, view: View) -> bool:
        """Report whether a tree defines it at least once."""
        return any(view.has(name, self.kind) for name in self.names)


def _hint(symbol: Symbol) -> Hint:
    """Describe a symbol by those that have stood in the same files, and by its known bodies."""
    files = {form.file for form in symbol.forms}
    key = next((key for key, each in SYMBOLS.items() if each is symbol), "")
    others = [each for each in SYMBOLS.values() if each is not symbol]
    near = [each for each in others if files.intersection(form.file for form in each.forms)]
    known = json.loads(resources.files(__package__).joinpath(BODIES).read_bytes())
    return Hint(
        tuple(name for each in near for name in each.names),
        frozenset(Fingerprint(*form) for form in known.get(key, ())),
    )


def function(*forms: Form) -> Symbol:
    return Symbol("function", forms)


def assignment(*forms: Form) -> Symbol:
    return Symbol("assignment", forms)


ARGUMENTS = "srt/server_args.py"
_CHOICES = "srt/arg_groups/choices.py"
OVERRIDES = "srt/arg_groups/overrides.py"
MODE = "srt/batch_invariant_ops/batch_invariant_ops.py"
SAMPLING = "srt/layers/sampler.py"
_UTILITIES = "srt/utils/common.py"
_BATCH_INFO = "srt/sampling/sampling_batch_info.py"

# Server arguments and how they are adapted to deterministic inference.
HANDLER = function(
    Form("_handle_deterministic_inference", ARGUMENTS, FIRST, "0.5.18"),
    Form("handle_deterministic_inference", "srt/arg_groups/attention_hook.py", "0.5.19"),
)
"""A method of ServerArgs, then a module-level function."""
OVERRIDE = function(Form("_deterministic_sampling_backend", OVERRIDES, "0.5.15"))
DECLARE = function(Form("declare_resolution", OVERRIDES, "0.5.19"))
"""What the handler changes arguments by where they cannot be assigned."""
CHOICES = assignment(
    Form("DETERMINISTIC_ATTENTION_BACKEND_CHOICES", ARGUMENTS, FIRST, "0.5.19"),
    Form("DETERMINISTIC_ATTENTION_BACKEND_CHOICES", _CHOICES, "0.5.20"),
)
SUPPORTED = assignment(
    Form("RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND", ARGUMENTS, "0.5.4.post2", "0.5.19"),
    Form("RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND", _CHOICES, "0.5.20"),
)

# The batch-invariant mode.
ENABLE = function(Form("enable_batch_invariant_mode", MODE))
DISABLE = function(Form("disable_batch_invariant_mode", MODE))
SCOPED = function(Form("set_batch_invariant_mode", MODE))
DISPATCH = function(Form("get_dispatch_device_backend", _UTILITIES, "0.5.11"))
IS_NPU = function(Form("is_npu", _UTILITIES))

# Sampling.
FORWARD_ASCEND = function(Form("_forward_ascend_backend", SAMPLING, "0.5.9"))
SAMPLE_FROM_LOGITS = function(Form("_sample_from_logits", SAMPLING, "0.5.9"))
SAMPLE_ASCEND = function(Form("top_k_top_p_min_p_sampling_from_logits_ascend", SAMPLING, "0.5.9"))
SAMPLE_ASCEND_PROBS = function(
    Form("top_k_top_p_min_p_sampling_from_probs_ascend", SAMPLING, "0.5.5.post3", "0.5.8.post1")
)
DRAW = function(Form("multinomial_with_seed", SAMPLING))
DRAW_UNFILTERED = function(Form("sampling_from_probs_torch", SAMPLING))
"""Draws on the sampling backend "pytorch" where no request filters; by seed from 0.5.3.post2."""
DRAW_FILTERED = function(Form("top_k_top_p_min_p_sampling_from_probs_torch", SAMPLING))
"""Draws on that backend where one does."""
FROM_BATCH = function(Form("from_schedule_batch", _BATCH_INFO))
"""Builds what the sampler is told of a batch."""
FORWARD_COPY = function(
    Form("forward_batch_generation", "srt/managers/tp_worker_overlap_thread.py", FIRST, "0.5.3"),
    Form("copy_for_forward", _BATCH_INFO, "0.5.3.post1"),
)
"""Copies it for a forward pass that overlaps with the next batch's preparation."""
PREPARE_FOR_DECODE = function(Form("prepare_for_decode", "srt/managers/schedule_batch.py"))

SYMBOLS = {name: value for name, value in globals().items() if isinstance(value, Symbol)}
"""Every symbol by the name that it has here."""

# Server arguments by their option's name; every release since the first has them all.
ENABLED = "enable_deterministic_inference"
ATTENTION_BACKEND = "attention_backend"
SAMPLING_BACKEND = "sampling_backend"
DISABLE_RADIX_CACHE = "disable_radix_cache"
ASCEND = "ascend"
"""The value of both backends on an NPU."""

FORWARD_EXTEND = "forward_extend"
"""The prefill method that every attention backend has."""

UPSTREAM_OPS = "npu_batch_invariant_ops"
"""The module of upstream's own adaptation (0.5.13 ..), in the folder where ours go."""
OURS = "npu_ops"
"""The vendored module of the operators, and the mark of what hands over to it."""
