"""Simulate an Ascend NPU, its torch_npu and the batch-invariant extension on a CPU.

    device.install()                        # the device "npu", once a process
    torch_npu.install()                     # a fake torch_npu in sys.modules
    extension.install("2.0.0")              # torch.ops.batch_invariant_ops
    result = device.cpu(torch.mm(device.npu(a), device.npu(b)))

Registrations are global to the process. `device` stays; `torch_npu` and `extension` can be
installed again, with another version too. Needs the extra `verify`.
"""
