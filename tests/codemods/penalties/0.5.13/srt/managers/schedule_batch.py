class ScheduleBatch:
    def prepare_for_decode(self):
        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

        if is_npu() and penalties.count(self):
            pass
        # The newest tokens are not known yet.
        elif self.sampling_info.penalizer_orchestrator.is_required:
            self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(self.known_tokens())

        self.seq_lens = self.seq_lens + 1
