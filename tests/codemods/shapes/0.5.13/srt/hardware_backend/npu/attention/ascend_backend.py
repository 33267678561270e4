import torch
import torch_npu


class AscendAttnBackend:
    def forward_extend(self, q, k, batch, sinks=None):
        if not self.use_mla:
            if self.use_fia:
                out, _ = torch_npu.npu_fused_infer_attention_score(q, block_table=self.tables)
            else:
                out = slow(q, k)
        else:
            if self.use_fia:
                out = fused_mla(q, k)
        return out
