class ScheduleBatch:
    def cumulate_penalty_output_tokens(self):
        self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(self.known_tokens())

    def prepare_for_decode(self):
        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

        if is_npu() and penalties.count(self):
            pass
        elif self.sampling_info.penalizer_orchestrator.is_required:
            self.cumulate_penalty_output_tokens()
        self.seq_lens = self.seq_lens + 1
