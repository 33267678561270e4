def npu_attention(*args, **kwargs):
    return fused(*args, **kwargs)


def npu_mm(a, b):
    return a @ b
