"""Small jobs of many ranks whose truth is known: who is late, whose clock is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whystall.testing import TraceBuilder, trace

STEP_NS = 1_000_000
_REDUCE_NS = 50_000


def rank_trace(
    rank: int, world: int, *, late_ns: int = 0, clock_ns: int = 0, steps: int = 3, first_step: int = 0, **metadata: Any
) -> TraceBuilder:
    """A rank that computes and then reduces with all others, ``late_ns`` after them; they wait."""
    told = {"distributedInfo": {"rank": rank, "world_size": world, "backend": "nccl"}}
    built = trace(**told, **metadata)
    group: dict[str, Any] = {
        "Process Group Name": "0",
        "Group size": world,
        "Process Group Ranks": str(list(range(min(world, 16)))),
    }
    group |= {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
    slowest = 300_000
    for number in range(first_step, first_step + steps):
        begin = number * STEP_NS + clock_ns
        arrives = begin + 400_000 + late_ns + rank % 7
        built.operator("aten::mm", at=begin, lasts=20_000)
        built.launch("gemm", at=begin + 5_000, runs_at=begin + 12_000, lasts=arrives - begin - 20_000, device=rank % 8)
        built.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            at=begin + 30_000,
            runs_at=arrives,
            lasts=begin + 400_000 + slowest + _REDUCE_NS - arrives,
            device=rank % 8,
            stream=20,
            **group,
        )
        built.step(number, at=begin, lasts=STEP_NS - 10_000)
    return built


def job(folder: Path, world: int, *, late: int | None = None, late_ns: int = 200_000, clocks_ns: int = 0) -> Path:
    """A folder with a trace for each rank; clocks are ``clocks_ns`` apart from rank to rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        built = rank_trace(rank, world, late_ns=late_ns if rank == late else 0, clock_ns=rank * clocks_ns)
        built.write(folder / f"rank{rank}.json")
    return folder
