"""The room in a device's memory beside the peak of its tensors."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase

_OF_MEMORY: Final = 0.95
"""The share of a device's memory that tensors can take, beside the context and libraries' workspaces."""


def memory_bytes(rank: RankCase) -> int | None:
    """The memory of the smallest device of a rank; ``None`` where it is not known."""
    return min((one.memory_bytes for one in rank.trace.metadata.devices if one.memory_bytes), default=None)


def peak_bytes(case: Case, rank: RankCase) -> int | None:
    """The most memory of a device that tensors took at once; ``None`` where it is not known."""
    seen = [one.peak_allocated_bytes or 0 for one in rank.analysis.memory if one.device_type != "cpu"]
    counted = [one.peak_allocated_bytes or 0 for run in case.runs if run.rank == rank.rank for one in run.allocators]
    return max([*seen, *counted], default=0) or None


def room_bytes(case: Case, rank: RankCase) -> float | None:
    """The memory that tensors could take beyond their peak; ``None`` where the device's or their peak is not known."""
    whole, peak = memory_bytes(rank), peak_bytes(case, rank)
    if not rank.on_device or whole is None or peak is None:
        return None
    return max(_OF_MEMORY * whole - peak, 0.0)
