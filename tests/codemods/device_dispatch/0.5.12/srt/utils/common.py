import torch


def is_npu():
    return hasattr(torch, "npu")


def is_cuda_alike():
    return torch.cuda.is_available()


def is_xpu():
    return torch.xpu.is_available()


def get_dispatch_device_backend():
    if is_cuda_alike():
        key = "CUDA"
    elif is_xpu():
        key = "XPU"
    elif is_npu():
        key = "NPU"
    else:
        raise RuntimeError("no accelerator")
    return key
