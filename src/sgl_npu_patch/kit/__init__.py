"""Tell facts about a machine, and measure there what `verify` can only simulate.

`facts`, `bits` and `program` need nothing but the standard library, torch and torch_npu: `render`
joins their own source with that of npu_ops and launch_guards into one file, which
`sgl-npu-patch kit` writes and `doctor` runs in a process of its own. They import each other
relatively, because the package has another name there. `doctor` and `receipt` read what comes back.
"""
