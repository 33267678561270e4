import dataclasses


class TpModelWorkerClient:
    def forward_batch_generation(self, batch):
        sampling_info = batch.sampling_info
        sampling_info.update_penalties()
        batch.sampling_info = self.cur_sampling_info = dataclasses.replace(
            sampling_info,
            penalizer_orchestrator=None,
        )

        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

            penalties.hand_over(sampling_info, self.cur_sampling_info)
        self.input_queue.put(batch)
