"""Put one omission into the sources of a release: small edits that `audit` must find."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import PurePosixPath

NORM, ACTIVATION = "srt/layers/layernorm.py", "srt/layers/activation.py"
QWEN3, SPECULATIVE = "srt/models/qwen3.py", "srt/speculative/spec_utils.py"
SAMPLER = "srt/layers/sampler.py"
NPU = "srt/hardware_backend/npu"
ATTENTION, TOPK = f"{NPU}/attention/ascend_backend.py", f"{NPU}/moe/topk.py"
LINEAR = f"{NPU}/quantization/linear_method_npu.py"
OURS = f"{NPU}/batch_invariant_ops/npu_ops.py"
MODE = "srt/batch_invariant_ops/batch_invariant_ops.py"
ARGS, COMMON = "srt/server_args.py", "srt/utils/common.py"
UNQUANT = "srt/layers/quantization/unquant.py"
DISPATCH = "srt/layers/utils/multi_platform.py"
NEEDED = (OURS, MODE, f"{NPU}/batch_invariant_ops/launch_guards.py")
"""What the mode of a patched tree is read off."""


@dataclass(frozen=True, slots=True)
class Seed:
    """Describe one omission.

    Attributes:
        within: the function at whose beginning ``code`` goes; empty for the end of the module.
        old: a text that ``code`` takes the place of instead.
        operator: what must be reported.
        at: the file in which it is reported, if that is another one.
    """

    path: str
    within: str
    code: str
    operator: str
    old: str = ""
    at: str = ""

    def __str__(self) -> str:
        return f"{self.operator}-{PurePosixPath(self.path).stem}-{self.code.split(chr(10))[0][:40]}"

    @property
    def files(self) -> tuple[str, ...]:
        """Name the files of the smallest tree in which it shows."""
        prefill = [ATTENTION] if self.path == ARGS else []
        return tuple(sorted({*NEEDED, self.path, self.at or self.path, *prefill}))

    def edit(self, data: bytes) -> bytes:
        """Give the file's bytes with the omission."""
        text = data.decode()
        if self.old:
            assert self.old in text, self.old
            return text.replace(self.old, self.code).encode()
        if not self.within:
            return f"{text}\n\n{self.code}\n".encode()
        first = _body_of(ast.parse(text), self.within)
        lines = text.splitlines(keepends=True)
        indent = " " * first.col_offset
        lines.insert(first.lineno - 1, textwrap.indent(f"{self.code}\n", indent))
        return "".join(lines).encode()


def _body_of(module: ast.Module, within: str) -> ast.stmt:
    body = module.body
    for name in within.split("."):
        (found,) = (
            n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name
        )
        body = found.body
    first = body[0]
    assert isinstance(first, ast.stmt)
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1] if is_text else first


_RMS, _GELU, _DECODE = (
    "RMSNorm.forward_npu", "GeluAndMul.forward_npu", "AscendAttnBackend.forward_decode",
)  # fmt: skip

SEEDS = (
    # Attention that nothing replaces.
    Seed(ATTENTION, _DECODE, "torch_npu.npu_fused_infer_attention_score_v2(q, k, v)",
         "torch_npu.npu_fused_infer_attention_score_v2"),
    Seed(ATTENTION, _DECODE, "torch.ops.npu.npu_fused_infer_attention_score_v2(q, k, v)",
         "torch.ops.npu.npu_fused_infer_attention_score_v2"),
    Seed(ATTENTION, _DECODE, "torch.ops.npu.npu_fused_infer_attention_score_v2.out(q, k, v, out=q)",
         "torch.ops.npu.npu_fused_infer_attention_score_v2"),
    Seed(ATTENTION, _DECODE, "torch_npu._npu_flash_attention_qlens(query=q)",
         "torch_npu._npu_flash_attention_qlens"),
    Seed(ATTENTION, _DECODE, "torch_npu._npu_paged_attention(query=q)",
         "torch_npu._npu_paged_attention"),
    Seed(ATTENTION, _DECODE, "torch_npu._npu_paged_attention_mla(query=q)",
         "torch_npu._npu_paged_attention_mla"),
    Seed(ATTENTION, _DECODE, "torch.ops.atb.npu_ring_mla(q, k)", "torch.ops.atb.npu_ring_mla"),
    Seed(ATTENTION, _DECODE, "torch_npu.npu_fusion_attention(q, k, v)",
         "torch_npu.npu_fusion_attention"),
    Seed(ATTENTION, _DECODE, "import torch.nn.functional as F\n"
         "F.scaled_dot_product_attention(q, k, v)",
         "torch.nn.functional.scaled_dot_product_attention"),
    # Norms.
    Seed(NORM, _RMS, "torch_npu.npu_gemma_rms_norm(x, self.weight)",
         "torch_npu.npu_gemma_rms_norm"),
    Seed(NORM, _RMS, "from sgl_kernel_npu.norm.add_rmsnorm_bias import add_rmsnorm_bias\n"
         "add_rmsnorm_bias(x, residual, self.weight)",
         "sgl_kernel_npu.norm.add_rmsnorm_bias.add_rmsnorm_bias"),
    Seed(NORM, _RMS, "from sgl_kernel_npu.norm.add_rmsnorm_bias import add_gemma_rms_norm as norm\n"
         "norm(x, residual, self.weight)",
         "sgl_kernel_npu.norm.add_rmsnorm_bias.add_gemma_rms_norm"),
    Seed(NORM, _RMS, "import sgl_kernel_npu.norm.l1_norm as norms\nnorms.l1_norm(x)",
         "sgl_kernel_npu.norm.l1_norm.l1_norm"),
    Seed(NORM, _RMS, "torch.norm(x)", "torch.norm"),
    # Quantised products.
    Seed(LINEAR, "NPUW8A8Int8LinearMethod.apply", "torch_npu.npu_quant_matmul(x, x)",
         "torch_npu.npu_quant_matmul"),
    Seed(ACTIVATION, _GELU, "torch.ops.npu.npu_weight_quant_batchmatmul(x, x)",
         "torch.ops.npu.npu_weight_quant_batchmatmul"),
    Seed(ACTIVATION, _GELU, "torch_npu.npu_transpose_batchmatmul(x, x)",
         "torch_npu.npu_transpose_batchmatmul"),
    Seed(ACTIVATION, _GELU, "torch.ops.npu.batch_matmul_transpose(x, x, x)",
         "torch.ops.npu.batch_matmul_transpose"),
    # Experts.
    Seed(ACTIVATION, _GELU, "torch_npu.npu_grouped_matmul([x], [x])",
         "torch_npu.npu_grouped_matmul"),
    Seed(ACTIVATION, _GELU, "torch.ops.npu.npu_grouped_matmul_swiglu_quant_v2(x, x)",
         "torch.ops.npu.npu_grouped_matmul_swiglu_quant_v2"),
    Seed(TOPK, "fused_topk_npu", "torch_npu.npu_moe_gating_top_k_softmax(router_logits)",
         "torch_npu.npu_moe_gating_top_k_softmax"),
    Seed(TOPK, "fused_topk_npu", "torch_npu.npu_moe_init_routing_v2(hidden_states)",
         "torch_npu.npu_moe_init_routing_v2"),
    Seed(TOPK, "fused_topk_npu", "torch.ops.npu.npu_moe_finalize_routing(hidden_states)",
         "torch.ops.npu.npu_moe_finalize_routing"),
    Seed(TOPK, "fused_topk_npu", "torch_npu.npu_moe_distribute_combine(hidden_states)",
         "torch_npu.npu_moe_distribute_combine"),
    # Sums.
    Seed(NORM, _RMS, "torch.nansum(x, dim=-1)", "torch.nansum"),
    Seed(ACTIVATION, _GELU, "x.float().nansum(-1)", "Tensor.nansum"),
    Seed(ATTENTION, _DECODE, "torch.nansum(q * k, dim=0, keepdim=True)", "torch.nansum"),
    Seed(ACTIVATION, _GELU, "torch.nn.functional.normalize(x)", "torch.nn.functional.normalize"),
    Seed(QWEN3, "Qwen3Attention.forward_prepare_npu", "hidden_states.nansum(-1)",
         "Tensor.nansum"),
    # Draws.
    Seed(SPECULATIVE, "", "def draw(probs):\n    return torch.multinomial(probs, 1)",
         "torch.multinomial"),
    Seed(QWEN3, "", "def draw(probs):\n    return probs.multinomial(1) if _is_npu else None",
         "Tensor.multinomial"),
    Seed(QWEN3, "", "def draw(probs):\n    from torch import multinomial\n\n"
         "    return multinomial(probs, num_samples=1)", "torch.multinomial"),
    # Operators taken by value.
    Seed(NORM, "", "from torch_npu import npu_add_rms_norm", "torch_npu.npu_add_rms_norm"),
    Seed(ACTIVATION, "", "if _is_npu:\n    from torch_npu import npu_add_rms_norm as fused",
         "torch_npu.npu_add_rms_norm"),
    Seed(ATTENTION, "", "_fused = torch_npu.npu_fused_infer_attention_score",
         "torch_npu.npu_fused_infer_attention_score"),
    Seed(ATTENTION, "", "_fused = torch.ops.npu.npu_fused_infer_attention_score",
         "torch.ops.npu.npu_fused_infer_attention_score"),
    Seed(NORM, "", 'norm = getattr(torch_npu, "npu_add_rms_norm", None)',
         "torch_npu.npu_add_rms_norm"),
    Seed(ATTENTION, "", "class Kernels:\n    fused = torch_npu.npu_fused_infer_attention_score",
         "torch_npu.npu_fused_infer_attention_score"),
    # What the mode no longer replaces.
    Seed(OURS, "", '"other": addmm,', "torch.nn.functional.linear with bias", '"addmm": addmm,',
         UNQUANT),
    Seed(OURS, "", '"other": log_softmax,', "torch.log_softmax", '"_log_softmax": log_softmax,',
         SAMPLER),
    Seed(OURS, "", "for namespace in (torch.ops.npu,):", "torch_npu.npu_add_rms_norm",
         "for namespace in (torch.ops.npu, torch_npu):", NORM),
    Seed(OURS, "", '_ATTENTION = "npu_other_attention"',
         "torch.ops.npu.npu_fused_infer_attention_score",
         '_ATTENTION = "npu_fused_infer_attention_score"', ATTENTION),
    Seed(MODE, "", "if is_cuda():", "enable_batch_invariant_mode", "if is_npu():"),
    # Dispatch sites and lists.
    Seed(ARGS, "", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ['fa3', 'triton']",
         "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"),
    Seed(ARGS, "", "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ['fa3', 'triton']",
         "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"),
    Seed(ARGS, "ServerArgs._handle_deterministic_inference",
         "if self.attention_backend not in ('fa3', 'fa4', 'triton'):\n    raise ValueError",
         "('fa3', 'fa4', 'triton')"),
    Seed(COMMON, "", '"PRIVATE"', "get_dispatch_device_backend", '"NPU"'),
    Seed(DISPATCH, "", "elif _is_mps:", "dispatch_forward", "elif _is_npu:"),
    # Operators that nobody has looked at, however they are reached.
    Seed(NORM, _RMS, "torch_npu.npu_new_norm(x)", "torch_npu.npu_new_norm"),
    Seed(NORM, _RMS, "torch.ops.npu.new_norm.default(x)", "torch.ops.npu.new_norm"),
    Seed(NORM, _RMS, "import torch_npu as device\ndevice.npu_new_norm(x)",
         "torch_npu.npu_new_norm"),
    Seed(NORM, _RMS, "ops = torch.ops.npu\nops.new_norm(x)", "torch.ops.npu.new_norm"),
    Seed(NORM, _RMS, 'getattr(torch_npu, "npu_new_norm")(x)', "torch_npu.npu_new_norm"),
    Seed(NORM, _RMS, "from sgl_kernel_npu.norm import new_norm\nnew_norm(x)",
         "sgl_kernel_npu.norm.new_norm"),
    Seed(NORM, _RMS, "torch.ops.other.new_norm(x)", "torch.ops.other.new_norm"),
    Seed(NORM, _RMS, "torch.cholesky(x)", "torch.cholesky"),
    Seed(QWEN3, "",
         "def one(x):\n    if not _is_npu:\n        return x\n    return torch.nansum(x)",
         "torch.nansum"),
    Seed(QWEN3, "", "def one(x):\n    return torch.nansum(x) if is_npu() else x", "torch.nansum"),
    Seed(QWEN3, "", 'def one(x):\n    if x.device.type == "npu":\n        return torch.nansum(x)',
         "torch.nansum"),
    Seed(QWEN3, "", "def one(x):\n    return _is_npu and torch.nansum(x)", "torch.nansum"),
    Seed(QWEN3, "", "def one(x):\n    if _is_cuda:\n        pass\n    elif _is_npu and x.numel():\n"
         "        x.mean(-1).nansum()", "Tensor.nansum"),
    Seed(QWEN3, "", "class AscendHead:\n    def run(self, x):\n        return torch.nansum(x)",
         "torch.nansum"),
)  # fmt: skip
