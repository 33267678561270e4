class ScheduleBatch:
    def prepare_for_decode(self):
        if not self.spec_algorithm.is_none():
            return

        from sglang.srt.utils.common import is_npu

        if is_npu():
            from sglang.srt.hardware_backend.npu.batch_invariant_ops import penalties

        if is_npu() and penalties.count(self):
            pass
        elif self.sampling_info.penalizer_orchestrator.is_required:
            if self.enable_overlap:
                tokens = self.known_tokens()
            else:
                tokens = self.output_ids
            self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(tokens)

        self.seq_lens = self.seq_lens + 1
