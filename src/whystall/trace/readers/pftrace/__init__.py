"""Perfetto traces of PyTorch's profiler (``.pftrace``, from torch 2.15)."""
