import torch


def npu_attention(*args, **kwargs):
    return fused(*args, **kwargs)


def npu_mm(a, b):
    return a @ b


def npu_mean_batch_invariant(x, dim, keepdim=False):
    return torch.sum(x, dim, keepdim) / x.shape[dim]
