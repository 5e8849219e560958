"""The format of the PyTorch profiler (Kineto): JSON with `traceEvents`, of any age and vendor."""
