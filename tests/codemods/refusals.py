"""Sources whose premise is gone or ambiguous, by seam: each must end in a conflict."""

from __future__ import annotations

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from tests.helpers import (
    ATTENTION,
    BATCH_INFO,
    COMMON,
    DISPATCH,
    HANDLER,
    LOOPING_BRANCH,
    NATIVE_CLASS,
    NATIVE_DRAW,
    NATIVE_ENABLE,
    NATIVE_FILTERED,
    OPS,
    OPS_DISABLE,
    OPS_ENABLE,
    OPS_SCOPED,
    REFUSAL,
    SAMPLER,
    SAMPLER_CLASS,
    SAMPLER_DRAW,
    SAMPLER_FILTERED,
    SERVER_ARGS,
    Files,
    attention,
    batch_invariant_ops,
    common,
    declaring,
    flagged_sampler,
    native_ops,
    native_sampler,
    sampler,
    server_args,
)

CHOICES = "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"
RADIX = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"


def _but(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


def _choices(line: str) -> Files:
    return {SERVER_ARGS: server_args(choices=line + "\n")}


def _radix(line: str) -> Files:
    return {SERVER_ARGS: server_args(radix=line + "\n")}


def _handler(old: str, new: str) -> Files:
    return {SERVER_ARGS: server_args(handler=_but(HANDLER, old, new))}


def _native(*, radix: str = "", handler: str = HANDLER) -> Files:
    return {**native_ops(), SERVER_ARGS: server_args(radix=radix or OPEN + "\n", handler=handler)}


def _declaring(old: str, new: str) -> Files:
    return _native(handler=_but(declaring(HANDLER), old, new))


def _refusing(old: str, new: str) -> Files:
    return _native(handler=_but(HANDLER + REFUSAL, old, new))


def _dispatch(old: str, new: str) -> Files:
    return {COMMON: common(_but(DISPATCH, old, new))}


def _attention(text: str) -> Files:
    return {ATTENTION: text}


CLOSED = f'{RADIX} = ["fa3", "triton"]'
OPEN = f'{RADIX} = ["fa3", "ascend"]'
OTHER_HANDLER = "\n\nclass Other:\n    def _handle_deterministic_inference(self):\n        pass\n"
OTHER_BACKEND = (
    "\n\nclass Other:\n    def forward_extend(self, q):\n"
    "        if self.use_fia:\n            pass\n"
)
IF_ENABLED = "if self.enable_deterministic_inference:"
IF_FUSED_ELSE = (
    "            if x:\n                pass\n            elif self.use_fia:\n                "
)
IF_FUSED = "            if self.use_fia:\n                "

HANDLERS: dict[str, Files] = {
    "handler renamed": {
        SERVER_ARGS: _but(
            server_args(), "_handle_deterministic_inference", "_handle_deterministic_serving"
        )
    },
    "handler twice": {SERVER_ARGS: server_args() + OTHER_HANDLER},
    "handler under a condition": {
        SERVER_ARGS: _but(
            server_args(handler="def other(self):\n    pass\n"),
            "class ServerArgs:\n",
            "class ServerArgs:\n    if FLAG:\n        def _handle_deterministic_inference(self):\n"
            "            if self.enable_deterministic_inference:\n                pass\n\n",
        )
    },
    "branch gone": _handler(IF_ENABLED, "if self.reproducible:"),
    "branch negated with an else": _handler(
        IF_ENABLED, "if not self.enable_deterministic_inference:\n        pass\n    else:"
    ),
    "branch with another condition": _handler(
        IF_ENABLED, "if self.enable_deterministic_inference and self.tp_size:"
    ),
    "branch inside another": _handler(
        f"    {IF_ENABLED}\n",
        f"    if self.x:\n        pass\n    elif not self.y:\n      {IF_ENABLED}\n",
    ),
    "branch twice": _handler(
        f"    {IF_ENABLED}\n", f"    {IF_ENABLED}\n        pass\n    {IF_ENABLED}\n"
    ),
}

HARDENED_HANDLERS: dict[str, Files] = {
    name: {**native_ops(), SERVER_ARGS: _but(str(files[SERVER_ARGS]), CLOSED, OPEN)}
    for name, files in HANDLERS.items()
}

ATTENTIONS: dict[str, Files] = {
    "backend gone": {ATTENTION: "x = 1\n"},
    "method renamed": _attention(_but(attention(), "forward_extend", "forward_extended")),
    "method twice": _attention(attention() + OTHER_BACKEND),
    "test renamed": _attention(_but(attention(), "self.use_fia", "self.fused")),
    "branch with another condition": _attention(
        _but(attention(), IF_FUSED, "            if self.use_fia and q.any():\n                ")
    ),
    "branch twice": _attention(attention(before="if self.use_fia:\n    return fast(q)\n")),
    "branch under sinks": _attention(
        _but(attention(), "if not self.use_mla:", "if sinks is not None:")
    ),
    "for models with MLA only": _attention(
        _but(attention(), "if not self.use_mla:", "if self.use_mla:").replace(
            "        else:\n            if self.use_fia:", "        else:\n            if True:"
        )
    ),
}

_FILTERED, _DRAW, _CLASS = SAMPLER_FILTERED, SAMPLER_DRAW, SAMPLER_CLASS
_NPU_OPS = f"{PROJECT.vendor_folder}/npu_ops.py"
_OURS = vendor.render(PROJECT, "npu_ops").decode()

REFUSALS: dict[str, dict[str, Files]] = {
    "backend_lists": {
        "renamed": _choices('DETERMINISTIC_BACKEND_CHOICES = ["fa3"]'),
        "twice": _choices(f'{CHOICES} = ["fa3"]\n{CHOICES} = ["triton"]'),
        "under a condition": _choices(f'if True:\n    {CHOICES} = ["fa3"]'),
        "built by a call": _choices(f'{CHOICES} = list(("fa3", "triton"))'),
        "added up": _choices(f'{CHOICES} = ["fa3"] + MORE'),
        "an entry from a name": _choices(f'{CHOICES} = ["fa3", TRITON]'),
        "empty": _choices(f"{CHOICES} = []"),
        "ascend twice": _choices(f'{CHOICES} = ["ascend", "fa3", "ascend"]'),
        "appended to later": _choices(f'{CHOICES} = ["fa3"]\n{CHOICES}.append("ascend")'),
        "two targets": _choices(f'{CHOICES} = OTHERS = ["fa3"]'),
        "replaced by an import": _choices(f'{CHOICES} = ["fa3"]\nfrom a import {CHOICES}'),
    },
    "radix_cache": {
        "renamed": _radix('RADIX_BACKENDS = ["fa3"]'),
        "twice": _radix(f'{RADIX} = ["fa3"]\n{RADIX} = ["triton"]'),
        "built by a call": _radix(f'{RADIX} = list(("fa3", "triton"))'),
        "under a condition": _radix(f'if True:\n    {RADIX} = ["fa3"]'),
        "ascend twice": _radix(f'{RADIX} = ["ascend", "ascend"]'),
        "extended later": _radix(f'{RADIX} = ["fa3"]\n{RADIX}.extend(["ascend"])'),
        "listed where prefill ignores the prefix": {
            **_radix(f'{RADIX} = ["fa3", "ascend"]'),
            ATTENTION: attention(LOOPING_BRANCH),
        },
        "no gate where prefill ignores the prefix": {
            **_handler(f"not in {RADIX}", "in OTHERS"),
            ATTENTION: attention(LOOPING_BRANCH),
        },
        "prefill by something else": _attention(attention("out = other(q)\n")),
        **{f"attention: {name}": files for name, files in ATTENTIONS.items()},
    },
    "sampling_backend": {
        "no warning": _handler('        logger.warning("the sampler is pytorch\'s now")\n', ""),
        "twice": _handler(
            'self.sampling_backend = "pytorch"\n',
            'self.sampling_backend = "pytorch"\n        self.sampling_backend = "pytorch"\n',
        ),
        "another value": _handler('= "pytorch"', '= "flashinfer"'),
        "under a condition": _handler(
            '        self.sampling_backend = "pytorch"\n        logger',
            '        if self.x:\n            self.sampling_backend = "pytorch"\n        logger',
        ),
        "outside the branch": _handler(
            f"    {IF_ENABLED}\n",
            f'    self.sampling_backend = "pytorch"\n    logger.warning("")\n    {IF_ENABLED}\n',
        ),
        **HANDLERS,
    },
    "device_dispatch": {
        "renamed": {
            COMMON: common(_but(DISPATCH, "get_dispatch_device", "get_dispatching_device"))
        },
        "twice": {COMMON: common(DISPATCH + "\n\n" + DISPATCH)},
        "under a condition": {
            COMMON: common("if True:\n    def get_dispatch_device_backend(): ...\n")
        },
        "a table": {
            COMMON: common("def get_dispatch_device_backend():\n    return TABLE[kind()]\n")
        },
        "no raise": _dispatch('raise RuntimeError("no accelerator")', 'key = "CPU"'),
        "another key": _dispatch('"XPU"', '"HPU"'),
        "NPU gives something else": _dispatch(
            "    elif is_xpu():",
            '    elif is_npu():\n        key = "PrivateUse1"\n    elif is_xpu():',
        ),
        "is_npu gone": {
            COMMON: _but(common(), "def is_npu():", "def on_npu():"),
            SERVER_ARGS: server_args(imports=""),
        },
        "is_npu a variable": {COMMON: common() + "\n\nis_npu = False\n"},
        "replaced": {COMMON: common() + "\n\nget_dispatch_device_backend = None\n"},
    },
    "batch_invariant": {
        "enable renamed": {
            OPS: _but(
                batch_invariant_ops(), "enable_batch_invariant_mode", "enable_batch_invariance"
            )
        },
        "disable gone": {OPS: batch_invariant_ops(disable="")},
        "scoped gone": {OPS: batch_invariant_ops(scoped="")},
        "enable twice": {OPS: batch_invariant_ops(enable=OPS_ENABLE + "\n\n" + OPS_ENABLE)},
        "no flag": {
            OPS: batch_invariant_ops(
                enable=_but(OPS_ENABLE, "    if _MODE:\n        return\n", "    pass\n")
            )
        },
        "library by a helper": {
            OPS: batch_invariant_ops(enable=_but(OPS_ENABLE, "torch.library.Library(", "library("))
        },
        "another parameter": {
            OPS: batch_invariant_ops(
                enable=_but(
                    _but(OPS_ENABLE, "enable_bmm: bool", "mode=1, enable_bmm: bool"),
                    "triton_mm,",
                    "triton_mm[mode],",
                )
            )
        },
        "no global": {
            OPS: batch_invariant_ops(
                disable=_but(OPS_DISABLE, "    global _MODE, _LIB, _bmm\n", "")
            )
        },
        "no context manager": {
            OPS: batch_invariant_ops(scoped=_but(OPS_SCOPED, "@contextlib.contextmanager\n", ""))
        },
        "two yields": {
            OPS: batch_invariant_ops(scoped=_but(OPS_SCOPED, "yield", "yield\n    yield"))
        },
    },
    "hardened_radix_cache": {
        **{name: files for name, files in HARDENED_HANDLERS.items() if "branch" not in name},
        "list gone": _native(radix="KEPT = ['ascend']\n"),
        "list computed": _native(radix=f"{RADIX} = keeping()\n"),
        "two lists refuse": _refusing(
            REFUSAL, REFUSAL + REFUSAL.replace("deepseek", "small").replace("fa3", "fa4")
        ),
        "not of DeepSeek": _refusing("if self.deepseek", "if self.large"),
        "elsewhere under DeepSeek": _refusing(
            "        if self.deepseek:\n",
            "        if self.deepseek:\n            pass\n        else:\n",
        ),
        "list used twice": _refusing(
            '        if self.deepseek:\n            if self.attention_backend not in ["fa3"]',
            '        known = ["fa3"]\n        use(known)\n        if self.deepseek:\n'
            "            if self.attention_backend not in known",
        ),
    },
    "hardened_launch": {
        **HARDENED_HANDLERS,
        "a return inside": _declaring("        if cfg.tp", "        return\n        if cfg.tp"),
        "called elsewhere": _declaring(
            "    if cfg.enable_d", "    launch_guards.decide(cfg)\n    if cfg.enable_d"
        ),
        "declares for two objects": _declaring(
            "        if cfg.tp", '        declare_resolution(other, "x", y=1)\n        if cfg.tp'
        ),
        "declares for an expression": _declaring("lution(self,", "lution(of(self),"),
        "declares nothing": _declaring('declare_resolution(self, "handler", ', "note("),
        "declares and assigns": _native(
            handler=_but(HANDLER, "self.sampling_backend =", "declare_resolution(self).x =")
        ),
    },
    "hardened_operators": {
        "no flag": native_ops(_but(NATIVE_ENABLE, "    if _MODE:\n        return\n", "    pass\n")),
        "library by a helper": native_ops(
            _but(NATIVE_ENABLE, "torch.library.Library(", "library(")
        ),
        "another replacement": native_ops(
            NATIVE_ENABLE + "        torch_npu.npu_rms_norm = npu_norm\n"
        ),
        "another registration": native_ops(
            NATIVE_ENABLE + '        _LIB.impl("aten::sum", npu_sum, key)\n'
        ),
        "another statement": native_ops(NATIVE_ENABLE + "        warm_up()\n"),
        "a test of more": native_ops(_but(NATIVE_ENABLE, "not _is_npu", "not _is_npu and FLAG")),
        "a key under a test": native_ops(
            _but(NATIVE_ENABLE, "    _MODE = True\n", "    if is_npu():\n        key = NPU\n")
        ),
        "restored by hand": native_ops(
            disable=_but(OPS_DISABLE, "    _LIB = None", "    torch_npu.mm = MM\n    _LIB = None")
        ),
        "no context manager": native_ops(
            scoped=_but(OPS_SCOPED, "@contextlib.contextmanager\n", "")
        ),
        "module gone": {OPS: native_ops()[OPS]},
    },
    "sampler": {
        "draw renamed": {SAMPLER: _but(sampler(), "multinomial_with_seed", "multinomial_by_seed")},
        "draw twice": {SAMPLER: sampler(draw=_DRAW + "\n\n" + _DRAW)},
        "what the draw takes cannot be told": {
            SAMPLER: sampler(
                draw=_but(_DRAW, "u.add_(logprobs.to(torch.float64))", "mix(u, logprobs)")
            )
        },
        "the draw takes probabilities": {
            SAMPLER: sampler(draw=_but(_DRAW, "u.add_(logprobs.", "u.add_(logprobs.log()."))
        },
        "an override in a subclass": {
            SAMPLER: sampler()
            + "\n\nclass Mine(Sampler):\n    def _sample_from_logits(self, logits, info, simple):\n"
            "        return None\n"
        },
        "an extra caller": {
            SAMPLER: sampler() + "\n\ndef more(s, x):\n    return s._sample_from_logits(x, 1, 2)\n"
        },
        "forward without positions": {
            SAMPLER: sampler(body=_but(_CLASS, ", return_logprob, positions)", ", return_logprob)"))
        },
        "another parameter of the filter": {
            SAMPLER: sampler(
                filtered=_but(_FILTERED, "min_ps: torch.Tensor", "min_q: torch.Tensor")
            )
        },
        "no choice of a path": {SAMPLER: sampler(filtered=_but(_FILTERED, "hasattr(", "have("))},
        "the draw from something else": {
            SAMPLER: sampler(
                body=_but(_CLASS, "torch.softmax(logits, dim=-1)\n", "other(logits)\n")
            )
        },
        "an unknown decorator": {SAMPLER: sampler(draw=_but(_DRAW, "torch.compile(", "fast("))},
    },
    "hardened_sampler": {
        "draw twice": native_sampler(draw=NATIVE_DRAW + "\n\n" + NATIVE_DRAW),
        "an override in a subclass": native_sampler(
            body=NATIVE_CLASS + "\n\nclass Mine(Sampler):\n"
            "    def _sample_from_logits(self, logits, info, simple, positions):\n"
            "        return None\n"
        ),
        "an extra caller": native_sampler(
            body=NATIVE_CLASS + f"\n\ndef more(x):\n    return {symbols.SAMPLE_ASCEND}(x, 1)\n"
        ),
        "another parameter of the filter": native_sampler(
            filtered=_but(NATIVE_FILTERED, "min_ps: torch.Tensor", "min_q: torch.Tensor")
        ),
        "no choice of a path": native_sampler(filtered=_but(NATIVE_FILTERED, "hasattr(", "have(")),
        "the draw from something else": native_sampler(
            body=_but(NATIVE_CLASS, "torch.softmax(logits, dim=-1)\n", "other(logits)\n")
        ),
        "a seeded branch that does more": native_sampler(
            filtered=_but(NATIVE_FILTERED, "            del kept\n", "            record(kept)\n")
        ),
        "a draw in float32": native_sampler(
            draw=_but(NATIVE_DRAW, "bits.to(torch.float64)", "bits.to(torch.float32)")
        ),
        "a flag of something else": flagged_sampler(flag="batch.fusable"),
        "a flag from nowhere": {**flagged_sampler(), BATCH_INFO: ""},
    },
    "attention_comment": {
        **{name: files for name, files in ATTENTIONS.items() if name != "branch under sinks"},
        "branch as an elif": _attention(
            _but(
                attention(),
                IF_FUSED,
                IF_FUSED_ELSE,
            )
        ),
        "method inside a function": _attention(
            "def make():\n" + "".join(f"    {line}" for line in attention().splitlines(True))
        ),
    },
    "npu_ops": {
        "edited": {_NPU_OPS: _OURS + "x = 1\n"},
        "edited at its head": {_NPU_OPS: _but(_OURS, "import torch\n", "import torch  # ours\n")},
        "cut short": {_NPU_OPS: _OURS[: len(_OURS) // 2]},
        "by somebody else": {_NPU_OPS: "x = 1\n"},
        "empty": {_NPU_OPS: ""},
        "bytes": {_NPU_OPS: b"\xff\xfe"},
        "a line less": {_NPU_OPS: "\n".join(_OURS.split("\n")[:-5]) + "\n"},
        "no final newline": {_NPU_OPS: _OURS.rstrip("\n")},
    },
    "launch_guards": {
        **HANDLERS,
        "a return inside": _handler(
            "        if self.tp_size > 1:", "        return\n        if self.x:"
        ),
        "called elsewhere": _handler(
            f"    {IF_ENABLED}\n", f"    launch_guards.apply(self)\n    {IF_ENABLED}\n"
        ),
    },
}
