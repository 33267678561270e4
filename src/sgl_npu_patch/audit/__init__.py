"""Find the operators on the NPU path that are not batch-invariant and that nothing replaces."""
