class ScheduleBatch:
    def prepare_for_decode(self):
        # The newest tokens are not known yet.
        if self.sampling_info.penalizer_orchestrator.is_required:
            self.sampling_info.penalizer_orchestrator.cumulate_output_tokens(self.known_tokens())

        self.seq_lens = self.seq_lens + 1
