import dataclasses


class TpModelWorkerClient:
    def forward_batch_generation(self, batch):
        sampling_info = batch.sampling_info
        sampling_info.update_penalties()
        batch.sampling_info = self.cur_sampling_info = dataclasses.replace(
            sampling_info,
            penalizer_orchestrator=None,
        )
        self.input_queue.put(batch)
