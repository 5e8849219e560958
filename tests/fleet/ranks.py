"""Small jobs of many ranks whose truth is known: who is late, whose clock is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whystall.testing import TraceBuilder, trace

_COMPUTE_NS = 400_000
_REDUCE_NS = 50_000
_AFTER_NS = 40_000


def rank_trace(
    rank: int,
    world: int,
    *,
    late_ns: int = 0,
    latest_ns: int = 200_000,
    clock_ns: int = 0,
    steps: int = 3,
    first: int = 0,
    **metadata: Any,
) -> TraceBuilder:
    """A rank that computes, ``late_ns`` longer than others, and then reduces with all; one is ``latest_ns`` late.

    Its host runs ahead of its device. The profiler counts its steps from ``first``.
    """
    told = {"distributedInfo": {"rank": rank, "world_size": world, "backend": "nccl"}}
    built = trace(**told, **metadata)
    members = str(list(range(min(world, 16))))
    group: dict[str, Any] = {"Process Group Name": "0", "Group size": world, "Process Group Ranks": members}
    group |= {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
    lasts = _COMPUTE_NS + latest_ns + _REDUCE_NS + _AFTER_NS
    for number in range(steps):
        begin = number * lasts + clock_ns
        arrives = begin + _COMPUTE_NS + late_ns + rank % 7
        ends = begin + lasts - _AFTER_NS
        host = clock_ns + number * lasts // 4 - 50_000
        built.operator("aten::mm", at=host, lasts=20_000)
        built.launch("gemm", at=host + 5_000, runs_at=begin, lasts=arrives - begin, device=rank % 8)
        built.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            at=host + 30_000,
            runs_at=arrives,
            lasts=ends - arrives,
            device=rank % 8,
            **group,
        )
        built.launch("adam", at=host + 40_000, runs_at=ends, lasts=_AFTER_NS, device=rank % 8)
        built.step(first + number, at=host, lasts=lasts // 4 - 1_000)
    return built


def job(
    folder: Path, world: int, *, late: int | None = None, late_ns: int = 200_000, clocks_ns: int = 0, steps: int = 3
) -> Path:
    """A folder with a trace for each rank; clocks are ``clocks_ns`` apart from rank to rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        own = late_ns if rank == late else 0
        latest = late_ns if late is not None else 0
        built = rank_trace(rank, world, late_ns=own, latest_ns=latest, clock_ns=rank * clocks_ns, steps=steps)
        built.write(folder / f"rank{rank}.json")
    return folder
