import torch
import torch_npu


class AscendAttnBackend:
    def forward_extend(self, q, k, batch, sinks=None):
        if not self.use_mla:
            if self.use_fia:
                """FIA will support multi-bs in the later version of CANN"""
                done = 0
                for length in batch.extend_seq_lens_cpu:
                    out[done], _ = torch.ops.npu.npu_fused_infer_attention_score(q[done], k[done])
                    done += length
            else:
                out = slow(q, k)
        else:
            if self.use_fia:
                out = fused_mla(q, k)
        return out
