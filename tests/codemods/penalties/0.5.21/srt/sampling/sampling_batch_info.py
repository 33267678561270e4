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
            penalizer_orchestrator=orchestrator,
            temperatures=batch.temperatures,
            fusable_batch=all(1 <= r.params.top_k <= 1024 for r in batch.reqs),
        )

        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

            penalties.begin(ret)
        return ret

    def update_penalties(self):
        if self.penalizer_orchestrator.is_required:
            self.acc_additive_penalties = self.penalizer_orchestrator.sum()

    def copy_for_forward(self):
        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

            if penalties.follows(self):
                return penalties.copied(self)
        # The scheduler goes on with the original.
        self.update_penalties()
        return dataclasses.replace(self, penalizer_orchestrator=None)
