"""Writes JSON in the form of rocprofv3: the fields of the sample, of a job that a test knows."""

from __future__ import annotations

import json
from typing import Any

GPU, CPU = 500, 400
PART = "AMD Instinct MI350X"
BEGAN = 63_855_948_165_371
KINDS = ["NONE", "HIP_RUNTIME_API", "MEMORY_COPY", "KERNEL_DISPATCH", "RCCL_API", "MARKER_CORE_API"]
OPERATIONS = [
    [],
    ["hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"],
    ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"],
    ["KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_ENQUEUE", "KERNEL_DISPATCH_COMPLETE"],
    ["ncclAllReduce"],
    ["roctxRangePushA"],
]


def record(kind: int, operation: int, at: int, lasts: int, number: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 184, "kind": kind, "operation": operation, "thread_id": 77,
        "correlation_id": {"internal": number, "external": 0}, "start_timestamp": BEGAN + at,
        "end_timestamp": BEGAN + at + lasts, **more,
    }  # fmt: skip


def kernel(
    at: int, lasts: int, number: int, *, kernel_id: int = 8, agent: int = GPU, stream: int = 3
) -> dict[str, Any]:
    sent = {
        "agent_id": {"handle": agent}, "queue_id": {"handle": 16}, "kernel_id": kernel_id, "dispatch_id": number,
        "group_segment_size": 64, "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }  # fmt: skip
    return record(3, 2, at, lasts, number, dispatch_info=sent, stream_id={"handle": stream})


def agent(handle: int, of_type: int, number: int, name: str) -> dict[str, Any]:
    return {
        "id": {"handle": handle}, "type": of_type, "logical_node_id": number + 2, "logical_node_type_id": number,
        "product_name": name, "name": "gfx950", "cu_count": 256,
        "mem_banks": [{"heap_type": 1, "size_in_bytes": 1 << 38}],
    }  # fmt: skip


def process(pid: int = 908, *, api: bool = True, **records: list[dict[str, Any]]) -> dict[str, Any]:
    buffers: dict[str, Any] = {"kernel_dispatch": [], "memory_copy": [], "hip_api": [], "hsa_api": []}
    for step in range(4):
        at, number = 1_000_000 * step, 10 * step + 1
        buffers["kernel_dispatch"].append(kernel(at + 1000, 400_000, number))
        buffers["memory_copy"].append(
            record(
                2, 2, at + 500_000, 100_000, number + 1, src_agent_id={"handle": CPU}, dst_agent_id={"handle": GPU},
                bytes=4096, stream_id={"handle": 3},
            )
        )  # fmt: skip
        if api:
            buffers["hip_api"] += [record(1, 0, at, 500, number), record(1, 1, at + 600, 300, number + 1)]
            buffers["hip_api"].append(record(1, 2, at + 1000, 700_000, number + 2))
    return {
        "metadata": {"node": {"hostname": "host"}, "pid": pid, "init_time": BEGAN, "command": ["python", "train.py"]},
        "agents": [agent(CPU, 1, 0, "EPYC"), agent(GPU, 2, 0, PART), agent(501, 2, 1, PART)],
        "strings": {
            "buffer_records": [{"kind": kind, "operations": OPERATIONS[number]} for number, kind in enumerate(KINDS)]
        },
        "kernel_symbols": [{"kernel_id": 8, "kernel_name": "gemm.kd", "formatted_kernel_name": "gemm"}],
        "buffer_records": buffers | records,
    }  # fmt: skip


def job(*processes: dict[str, Any], api: bool = True) -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": list(processes or [process(api=api)])}).encode()
