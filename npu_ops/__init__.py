"""Hold the modules that are vendored into SGLang's NPU backend."""
