from sglang.srt.sampling import penaltylib


class SamplingBatchInfo:
    @classmethod
    def from_schedule_batch(cls, batch, vocab_size):
        orchestrator = penaltylib.BatchedPenalizerOrchestrator(
            vocab_size=vocab_size,
            batch=batch,
            penalizers={penaltylib.Frequency, penaltylib.Presence},
        )
        ret = cls(
            temperatures=batch.temperatures,
            penalizer_orchestrator=orchestrator,
        )
        return ret

    def update_penalties(self):
        if self.penalizer_orchestrator.is_required:
            self.linear_penalty = self.penalizer_orchestrator.sum()
