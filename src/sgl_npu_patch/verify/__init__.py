"""Check a patched tree: by its text, and by executing it on a simulated NPU.

`results` holds what a check gives; `static` and `off_npu` read the tree and need no torch;
`behaviour` executes it, always in a process that `isolation` starts; `contracts` compares what it
calls with what a torch_npu offers.
"""
