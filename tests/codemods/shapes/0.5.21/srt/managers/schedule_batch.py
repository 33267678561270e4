class ScheduleBatch:
    def cumulate_penalty_output_tokens(self):
        self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(self.known_tokens())

    def prepare_for_decode(self):
        if self.sampling_info.penalizer_orchestrator.is_required:
            self.cumulate_penalty_output_tokens()
        self.seq_lens = self.seq_lens + 1
