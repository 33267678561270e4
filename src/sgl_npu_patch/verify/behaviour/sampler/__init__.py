"""Execute a sampler on both its backends: a seeded request draws the same in every batch."""

from sgl_npu_patch.verify.behaviour.sampler import (  # noqa: F401  # importing declares them
    batches,
    calls,
    distribution,
    unseeded,
)
