"""Writes CSV in the form of rocprofv3: the files that one job leaves beside each other, of a job that a test knows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

BEGAN = 1_551_401_624_448_706
KERNEL = (
    "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
    "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count",
    "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z", "Grid_Size_X",
    "Grid_Size_Y", "Grid_Size_Z",
)  # fmt: skip
COPY = (
    "Kind", "Direction", "Stream_Id", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp",
    "End_Timestamp",
)  # fmt: skip
CALL = ("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
AGENT = ("Node_Id", "Logical_Node_Id", "Agent_Type", "Cu_Count", "Name", "Vendor_Name", "Product_Name", "Model_Name")
Rows = list[Sequence[object]]
Job = Mapping[str, tuple[Sequence[str], Sequence[Sequence[object]]]]


def kernel(
    at: int, lasts: int, number: int, *, name: str = "gemm", agent: str = "Agent 5", stream: int = 3
) -> list[object]:
    return [
        "KERNEL_DISPATCH", agent, 1, stream, 77, number, 8, name, number, BEGAN + at, BEGAN + at + lasts, 64, 0, 8, 0,
        16, 256, 1, 1, 1000, 2, 1,
    ]  # fmt: skip


def copy(at: int, lasts: int, number: int, way: str, source: str, target: str) -> list[object]:
    return ["MEMORY_COPY", f"MEMORY_COPY_{way}", 3, source, target, number, BEGAN + at, BEGAN + at + lasts]


def call(
    at: int, lasts: int, number: int, name: str, *, domain: str = "HIP_RUNTIME_API_EXT", thread: int = 77
) -> list[object]:
    return [domain, name, 70, thread, number, BEGAN + at, BEGAN + at + lasts]


def training() -> dict[str, tuple[Sequence[str], Rows]]:
    """By name of file its columns and rows: four steps, each with a kernel, a copy, their calls and a range."""
    kernels: Rows = []
    copies: Rows = []
    calls: Rows = []
    ranges: Rows = []
    for step in range(4):
        at, number = 1_000_000 * step, 10 * step + 1
        calls += [call(at, 500, number, "hipLaunchKernel"), call(at + 600, 300, number + 1, "hipMemcpyAsync")]
        calls.append(call(at + 1000, 700_000, number + 2, "hipDeviceSynchronize"))
        kernels.append(kernel(at + 1000, 400_000, number))
        copies.append(copy(at + 500_000, 100_000, number + 1, "HOST_TO_DEVICE", "Agent 0", "Agent 5"))
        ranges.append(call(at, 900_000, number + 3, f"iter {step}", domain="MARKER_CORE_RANGE_API"))
    ranges.append(call(50, 0, 99, "a mark", domain="MARKER_CORE_API"))
    ranges.append(call(60, 5, 98, "roctxNameOsThread", domain="MARKER_NAME_API"))
    agents: Rows = [
        [0, 0, "CPU", 96, "EPYC", "CPU", "AMD EPYC 9654", ""],
        [4, 4, "GPU", 304, "gfx942", "AMD", "AMD Instinct MI300X", "AquaVanjaram"],
        [5, 5, "GPU", 304, "gfx942", "AMD", "AMD Instinct MI300X", "AquaVanjaram"],
    ]
    return {
        "kernel_trace": (KERNEL, kernels),
        "memory_copy_trace": (COPY, copies),
        "hip_api_trace": (CALL, calls),
        "marker_api_trace": (CALL, ranges),
        "agent_info": (AGENT, agents),
    }


def text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Texts in quotes, numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def write(folder: Path, job: Job, prefix: str = "77_") -> Path:
    """The files of a job; the one of kernels, or else the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (columns, rows) in job.items():
        (folder / f"{prefix}{name}.csv").write_text(text(columns, rows), "utf-8")
    return folder / f"{prefix}{next(iter(job))}.csv"
