"""Set what deterministic inference on an NPU silently depends on.

Called while SGLang resolves its arguments, before worker processes start, so that they
inherit the environment. Imports nothing of torch_npu or of Ascend's extension unless
this torch_npu could capture graphs of the replaced operators at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# Flags of all releases, each with the value that is safe.
_GRAPH_FLAGS = {
    "disable_cuda_graph": True,
    "enable_breakable_cuda_graph": False,
    "debug_cuda_graph": False,
}
_COMPILE_FLAGS = {
    "enable_torch_compile": False,
    "enable_piecewise_cuda_graph": False,
    "enforce_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": True,
}
_GRAPH_VARIABLES = ("SGLANG_VIT_ENABLE_CUDA_GRAPH", "SGLANG_USE_BREAKABLE_CUDA_GRAPH")
_COMPILE_VARIABLES = ("SGLANG_ENABLE_TORCH_COMPILE",)
_MIXED_FLAGS = {"enable_mixed_chunk": False}
_CHUNK = "chunked_prefill_size"

# The list of backends for which the radix cache stays on, and where it is.
_CACHED = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"
_LISTED_IN = ("sglang.srt.server_args", "sglang.srt.arg_groups.choices")

# From 0.5.14 on the flags are folded into one configuration before this runs.
_GRAPH_CONFIG = "cuda_graph_config"
_PHASES = ("decode", "prefill")


@dataclasses.dataclass(frozen=True)
class Variable:
    """Say what a variable of the environment has to be.

    ``wanted`` is the value to set, None to unset it. ``accepts`` are all values that
    will do, in lower case, the empty string for unset. ``instead`` names a variable
    that makes this one needless where SGLang's attention reads it and it is true.
    """

    wanted: str | None
    accepts: tuple[str, ...]
    purpose: str
    instead: str = ""

    def suits(self, value: str) -> bool:
        """Return whether a value, the empty string for unset, will do."""
        return value.lower() in self.accepts


ENVIRONMENT = {
    "ASCEND_USE_FIA": Variable(
        "1",
        ("1", "true"),
        "attention runs the operator that has a batch-invariant variant",
        instead="ASCEND_USE_FA",
    ),
    "SGLANG_USE_FIA_NZ": Variable(
        "0",
        ("", "0", "false"),
        "the key-value cache keeps the layout that this operator takes",
    ),
    "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": Variable(
        "1",
        ("1", "true", "yes", "y"),
        "weights keep the layout that the batch-invariant matrix products take",
    ),
    "HCCL_DETERMINISTIC": Variable(
        "strict", ("strict",), "collectives add up in one order"
    ),
    "LCCL_DETERMINISTIC": Variable(
        "1", ("1",), "collectives inside a server add up in one order"
    ),
    "HCCL_OP_EXPANSION_MODE": Variable(
        None,
        ("", "ai_cpu", "host", "host_ts", "ccu_ms", "ccu_sched"),
        "collectives run where HCCL_DETERMINISTIC counts, not on vector cores",
    ),
    "CLOSE_MATMUL_K_SHIFT": Variable(
        "1", ("1",), "matrix products add up in one order on every core"
    ),
    "ATB_MATMUL_SHUFFLE_K_ENABLE": Variable(
        "0", ("0",), "matrix products of ATB add up in one order"
    ),
    "ATB_LLM_LCOC_ENABLE": Variable(
        "0", ("0",), "matrix products of ATB are not merged with collectives"
    ),
}

_ATTENTION_BACKENDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)
_NOT_REPLACED = "npu_fused_infer_attention_score_v2"
# Prefill of other models with heads of any other size runs it, where the attention
# has this function: from 0.5.14 on.
_BY_HEAD_SIZE = "_can_use_tnd"
_HEAD_SIZES = (128, 192, 256)

# What a launch may ask for that nothing shows to be batch-invariant, by arguments.
_UNSHOWN_ARGUMENTS = {
    "quantization": ("quantised weights", ("None",)),
    "kv_cache_dtype": (
        "a key-value cache of another type",
        ("None", "auto", "bf16", "bfloat16"),
    ),
    "enable_lora": ("LoRA", ("None", "False")),
    "speculative_algorithm": ("speculative decoding", ("None",)),
}
# The same by what a model's config.json says of it, if that is not empty.
_UNSHOWN_MODELS = {
    "quantization_config": "quantised weights",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "kv_lora_rank": "latent attention (MLA)",
    "linear_num_value_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "vision_config": "input other than text",
    "audio_config": "input other than text",
}

_ABSENT = object()
_warned: set[str] = set()


def apply(server_args: Any) -> None:
    """Do what `decide` says on a release whose arguments can be assigned."""
    changes = decide(server_args)
    for name, value in changes.items():
        setattr(server_args, name, value)
    # From 0.5.15 to 0.5.18 what is declared here is assigned again at the end.
    declared = getattr(server_args, "_resolved_overrides", None)
    if declared is not None and changes:
        declared.append(("launch_guards", changes))


def decide(config: Any) -> dict[str, Any]:
    """Return the arguments to change, and set the variables that have to be set.

    Warns once of each. ``config`` has SGLang's arguments of any release as attributes,
    as they are resolved so far; what it lacks is skipped.
    """
    changes = _switch_off(
        config,
        _COMPILE_FLAGS,
        _COMPILE_VARIABLES,
        "torch.compile and piecewise graphs trace past the operators that are replaced",
    )
    if not _graph_capture_supported():
        changes |= _switch_off(
            config,
            _GRAPH_FLAGS,
            _GRAPH_VARIABLES,
            "the installed torch_npu and batch_invariant_ops cannot renew the lengths "
            "of the replaced attention operator in a captured graph, and a replay with "
            "stale lengths gives wrong tokens",
        )
    if _may_run_ascend_attention(config):
        changes |= _keep_prompts_whole(config)
    _set_environment()
    if _may_run_ascend_attention(config) and (why := _why_not_replaced(config)):
        _warn_once(_NOT_REPLACED, why)
    for feature in _unshown(config):
        _warn_once(
            feature,
            f"Nothing shows that {feature} is batch-invariant on the NPU: operators "
            "run that are not replaced, so that a request's output may depend on the "
            "other requests of its batch. See docs/launch.md of sgl-npu-patch.",
        )
    return changes


def _unshown(config: Any) -> list[str]:
    """List what this launch asks for that deterministic inference does not cover."""
    found = [
        feature
        for name, (feature, covered) in _UNSHOWN_ARGUMENTS.items()
        if str(getattr(config, name, None)) not in covered
    ]
    whole = _whole_model(config)
    for model in (whole, _text_part(whole)):
        found += [name for key, name in _UNSHOWN_MODELS.items() if model.get(key)]
    return sorted(set(found))


def _set_environment() -> None:
    """Set each variable that does not suit, and warn where somebody had set it."""
    for name, variable in ENVIRONMENT.items():
        value = os.environ.get(name, "")
        if variable.suits(value) or (
            _is_true(variable.instead)
            and re.search(rf"\b{variable.instead}\b", _attention_source() or "")
        ):
            continue
        if variable.wanted is None:
            del os.environ[name]
        else:
            os.environ[name] = variable.wanted
        if value:
            done = (
                f"unsets {name}, which is {value!r}"
                if variable.wanted is None
                else f"sets {name}={variable.wanted} instead of {value!r}"
            )
            _warn_once(
                name,
                f"Deterministic inference on the NPU {done}, so that "
                f"{variable.purpose}.",
            )


def _switch_off(
    config: Any, flags: dict[str, bool], variables: tuple[str, ...], reason: str
) -> dict[str, Any]:
    changes: dict[str, Any] = {
        name: safe
        for name, safe in flags.items()
        if hasattr(config, name) and bool(getattr(config, name)) is not safe
    }
    settings = [f"{name}={safe}" for name, safe in changes.items()]
    if flags is _GRAPH_FLAGS and (off := _without_graphs(config)) is not None:
        changes[_GRAPH_CONFIG] = off
        settings += [f"{_GRAPH_CONFIG}[{phase}].backend=disabled" for phase in _PHASES]
    # Some releases export the flags before they handle deterministic inference.
    exported = [name for name in variables if _is_true(name, "yes", "y")]
    for name in exported:
        os.environ[name] = "0"
    settings += [f"{name}=0" for name in exported]
    if settings:
        _warn_once(
            reason,
            "Deterministic inference on the NPU sets "
            f"{', '.join(settings)}: {reason}.",
        )
    return changes


def _keep_prompts_whole(config: Any) -> dict[str, Any]:
    """Keep prompts from being cut where the ascend attention cannot go on with one."""
    # Up to 0.5.5 a mixed batch ignores what is cached, in 0.5.6 it runs an operator
    # that is not replaced, from 0.5.7 on it reads the cache by pages of one token.
    changes = _switch_off(
        config,
        _MIXED_FLAGS,
        (),
        "the ascend attention gives wrong tokens where a part of a prompt runs in one "
        "batch with tokens of other requests",
    )
    whole = -1
    if not _prefill_reads_cache() and getattr(config, _CHUNK, whole) != whole:
        changes[_CHUNK] = whole
        _warn_once(
            _CHUNK,
            f"Deterministic inference on the NPU sets {_CHUNK}={whole}: the fused "
            "attention of this SGLang answers a prompt that is cut, because it is long "
            "or because others are prefilled with it, as if only its last part had "
            "been sent.",
        )
    return changes


def _prefill_reads_cache() -> bool:
    """Return whether prefill goes on where a part of a prompt is in the cache.

    Whoever patched SGLang looked at its attention, and listed ascend only then.
    """
    lists = (getattr(sys.modules.get(m), _CACHED, None) for m in _LISTED_IN)
    return "ascend" in next((each for each in lists if each is not None), ())


def _without_graphs(config: Any) -> Any:
    """Return the configuration of graphs with none left, None where there is none."""
    found = getattr(config, _GRAPH_CONFIG, _ABSENT)
    if found is _ABSENT:
        return None
    # Later steps turn a phase on again that was not chosen explicitly.
    locked = getattr(config, f"_{_GRAPH_CONFIG}_locked", None)
    if isinstance(locked, set):
        locked.update((phase, "backend") for phase in _PHASES)
    given: Any = found or {}
    off: Any
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        phases = {
            phase: dataclasses.replace(getattr(found, phase), backend="disabled")
            for phase in _PHASES
        }
        off = dataclasses.replace(found, **phases)
    else:
        # Not resolved yet, and then what is given explicitly precedes every flag.
        off = {
            **given,
            **{p: {**given.get(p, {}), "backend": "disabled"} for p in _PHASES},
        }
    return None if off == found else off


def _may_run_ascend_attention(config: Any) -> bool:
    """Return False only where other backends are chosen for everything."""
    chosen = [getattr(config, name, None) for name in _ATTENTION_BACKENDS]
    return "ascend" in chosen or not any(chosen)


def _why_not_replaced(config: Any) -> str:
    """Say why this model runs attention that nothing replaces; empty if it does not."""
    source = _attention_source()
    if source is not None and not re.search(
        rf"{_NOT_REPLACED}\s*(\.\w+\s*)?\(", source
    ):
        return ""
    model = _text_part(_whole_model(config))
    no_counterpart = (
        "It has no batch-invariant counterpart: where it runs, a request's output may "
        "depend on the other requests of its batch."
    )
    if source is None or not model:
        return (
            f"This SGLang calls {_NOT_REPLACED} on some paths of its ascend attention, "
            "depending on the model (attention sinks, sliding windows, some head "
            f"sizes). {no_counterpart}"
        )
    if _has_windows_or_sinks(model):
        reason = "its layers have a sliding window or attention sinks"
    elif model.get("kv_lora_rank"):
        reason = "its attention is latent (MLA) and goes on after a cached prefix"
    elif _BY_HEAD_SIZE in source and (size := _head_size(model)) not in _HEAD_SIZES:
        reason = f"its heads have the size {size}"
        no_counterpart += (
            " In prefill it takes one request at a time. There the others matter only "
            "where they change how a prompt is cut: --chunked-prefill-size -1 and "
            "--disable-radix-cache prevent that, unless a request is retracted."
        )
    else:
        return ""
    return f"This model runs {_NOT_REPLACED}, because {reason}. {no_counterpart}"


def _attention_source() -> str | None:
    """Return the text of SGLang's Ascend attention, in a folder beside this."""
    attention = Path(__file__).parents[1] / "attention"
    try:
        return "\n".join(path.read_text("utf-8") for path in attention.rglob("*.py"))
    except (OSError, ValueError):
        return None


def _whole_model(config: Any) -> dict[str, Any]:
    """Return what the model's config.json says, nothing if unknown."""
    path = getattr(config, "model_path", None)
    found: Any = None
    try:
        found = json.loads((Path(path or "") / "config.json").read_bytes())
    except (OSError, TypeError, ValueError):
        # A name on a hub, whose files SGLang has loaded by now.
        transformers = sys.modules.get("transformers")
        revision = getattr(config, "revision", None)
        with contextlib.suppress(Exception):
            read = transformers.PretrainedConfig.get_config_dict  # type: ignore[union-attr]
            found = read(path, revision=revision, local_files_only=True)[0]
    return found if isinstance(found, dict) else {}


def _text_part(model: dict[str, Any]) -> dict[str, Any]:
    text = model.get("text_config")
    return text if isinstance(text, dict) else model


def _has_windows_or_sinks(model: dict[str, Any]) -> bool:
    if any("sink" in name and given for name, given in model.items()):
        return True
    if "sliding_attention" in (model.get("layer_types") or ()):
        return True
    # Some models say how wide a window would be, and that there is none.
    windows = any("sliding_window" in name and given for name, given in model.items())
    return windows and model.get("use_sliding_window") is not False


def _head_size(model: dict[str, Any]) -> int | None:
    try:
        return int(
            model.get("head_dim")
            or model["hidden_size"] // model["num_attention_heads"]
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _graph_capture_supported() -> bool:
    """Return whether npu_ops will register a graph handler; False when in doubt."""
    torch_npu = sys.modules.get("torch_npu")
    if not hasattr(getattr(torch_npu, "npu", None), "register_npu_graph_handler"):
        return False
    try:
        npu_ops = importlib.import_module(f"{__package__}.npu_ops")
        return bool(npu_ops.graph_capture_supported())
    except Exception:
        logger.debug("Graph capture stays off: npu_ops gives no answer", exc_info=True)
        return False


def _is_true(variable: str, *more: str) -> bool:
    return os.environ.get(variable, "").lower() in ("true", "1", *more)


def _warn_once(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        logger.warning(message)
