"""A drop-in for ``deepspeed.profiling.flops_profiler``: change the import, keep the rest.

    from whystall.deepspeed import FlopsProfiler, get_model_profile

The signatures, attributes and text are those of DeepSpeed 0.19.8; the counts are whystall's. DeepSpeed itself is not
needed. The documentation lists the differences.
"""

from __future__ import annotations

from whystall.deepspeed.config import FlopsProfilerConfig, read_config
from whystall.deepspeed.profiler import FlopsProfiler, get_model_profile, profile_at_step
from whystall.deepspeed.strings import (
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from whystall.deepspeed.text import get_module_duration, get_module_flops, get_module_macs

__all__ = [
    "FlopsProfiler",
    "FlopsProfilerConfig",
    "bytes_to_string",
    "duration_to_string",
    "flops_to_string",
    "get_model_profile",
    "get_module_duration",
    "get_module_flops",
    "get_module_macs",
    "macs_to_string",
    "number_to_string",
    "params_to_string",
    "profile_at_step",
    "read_config",
]
