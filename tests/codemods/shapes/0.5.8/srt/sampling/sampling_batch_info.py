import dataclasses

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
            self.acc_linear_penalties = self.penalizer_orchestrator.sum()

    def copy_for_forward(self):
        # The scheduler goes on with the original.
        self.update_penalties()
        return dataclasses.replace(self, penalizer_orchestrator=None)
