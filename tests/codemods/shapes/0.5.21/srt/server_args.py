import logging
import os

from sglang.srt.utils.common import is_npu

logger = logging.getLogger(__name__)

DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["flashinfer", "fa3", "triton", "ascend"]

RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3", "triton", "ascend"]


class ServerArgs:
    enable_deterministic_inference: bool = False

    def _handle_deterministic_inference(self):
        cfg = resolving_view(self)
        if cfg.enable_deterministic_inference:
            if cfg.attention_backend not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
                raise ValueError(cfg.attention_backend)

            if cfg.attention_backend not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND:
                declare_resolution(self, "handler", disable_radix_cache=True)

            if cfg.tp_size > 1:
                os.environ["NCCL_ALGO"] = "tree"
