import logging

logger = logging.getLogger(__name__)


def _deterministic_sampling_backend(view):
    if view.enable_deterministic_inference and view.sampling_backend != "ascend":
        logger.warning("the sampler is pytorch's now")
        return {"sampling_backend": "pytorch"}
    return {}
