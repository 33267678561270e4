import logging
import os

from sglang.srt.utils.common import is_npu

logger = logging.getLogger(__name__)

DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["flashinfer", "fa3", "triton"]

RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3", "triton", "ascend"]


class ServerArgs:
    enable_deterministic_inference: bool = False

    def _handle_deterministic_inference(self):
        if self.enable_deterministic_inference:
            # Which sampler
            self.sampling_backend = "pytorch"
            logger.warning("the sampler is pytorch's now")

            if self.attention_backend not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
                raise ValueError(self.attention_backend)

            if self.attention_backend not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND:
                self.disable_radix_cache = True

            if self.tp_size > 1:
                os.environ["NCCL_ALGO"] = "tree"
