class SamplingBatchInfo:
    @classmethod
    def from_schedule_batch(cls, batch):
        return cls(
            temperatures=batch.temperatures,
            fusable_batch=all(1 <= r.params.top_k <= 1024 for r in batch.reqs),
        )
