"""Which table an event category belongs to.

Kineto renamed its categories twice and each accelerator adds its own; matching is on the lower-cased
name. A category that is not listed is kept in ``Trace.other_events``, so that nothing vanishes.
"""

from __future__ import annotations

from typing import Final

OPERATOR: Final = "operators"
PYTHON: Final = "python_functions"
RUNTIME: Final = "runtime_calls"
DEVICE: Final = "device_events"
ANNOTATION: Final = "annotations"
DEVICE_ANNOTATION: Final = "device_annotations"
MEMORY: Final = "memory_events"
FLOW: Final = "flows"
SYNCHRONIZATION: Final = "synchronizations"
OTHER: Final = "other_events"

# Sources: kineto libkineto/src/ActivityType.cpp (names since 2022), the traces of 2021 in
# pytorch/kineto tb_plugin/samples ("Kernel", "Operator", "async"), and MTIA traces in HTA's test data.
TABLE_OF_CATEGORY: Final[dict[str, str]] = {
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "python_function": PYTHON,
    "python": PYTHON,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "runtime": RUNTIME,
    "glow_runtime": RUNTIME,
    "mtia_runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "kernel": DEVICE,
    "gpu_memcpy": DEVICE,
    "gpu_memset": DEVICE,
    "memcpy": DEVICE,
    "memset": DEVICE,
    "mtia_ccp_events": DEVICE,
    "hpu_op": DEVICE,
    "user_annotation": ANNOTATION,
    "gpu_user_annotation": DEVICE_ANNOTATION,
    "cpu_instant_event": MEMORY,
    "ac2g": FLOW,
    "async": FLOW,
    "async_cpu_to_gpu": FLOW,
    "async_gpu": FLOW,
    "fwdbwd": FLOW,
    "forward_backward": FLOW,
    "cuda_sync": SYNCHRONIZATION,
    # Converters of Nsight Systems' and nvprof's databases (nsys2json, nvprof2json) call kernels and calls alike "cuda".
    "cuda": DEVICE,
    "cuda_api": RUNTIME,
    "nvtx": ANNOTATION,
    "nvtx-kernel": DEVICE_ANNOTATION,
}

_DEVICE_KINDS: Final[dict[str, str]] = {
    "kernel": "kernel",
    "cuda": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}


def table_of(category: str) -> str:
    """The table for events of ``category`` in any spelling."""
    return TABLE_OF_CATEGORY.get(category.lower(), OTHER)


def device_kind(category: str) -> str:
    """``kernel``, ``memcpy``, ``memset``, or ``accelerator`` for another vendor's own events."""
    return _DEVICE_KINDS.get(category.lower(), "accelerator")
