import torch


def is_npu():
    return hasattr(torch, "npu")


def is_cuda_alike():
    return torch.cuda.is_available()


def is_xpu():
    return torch.xpu.is_available()
