"""Intermediate results of a trace's analysis: computed once, for replay and rules.

They include the user's kernel classes and the peaks that `whystall probe` measured, so that both count everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.efficiency import tensor_core_use
from whystall.analysis.kernel_classes import Classified
from whystall.analysis.memory_rate import FAR_BELOW, pointwise_bytes_per_s
from whystall.analysis.operators import OperatorTree, operator_tree
from whystall.analysis.work import EventWork, OperatorWork, counted_operator_of, event_work, operator_work
from whystall.hardware.accelerators import Accelerator
from whystall.trace.model import Trace

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Workings:
    """Tables by device event of a trace.

    They hold its class, the operator call that counts for it, and that call's operations and bytes.
    """

    classified: Classified
    tree: OperatorTree
    work: OperatorWork
    events: EventWork
    peaks: Mapping[int, Accelerator | None]
    """The peaks of each of the trace's devices."""
    bytes_per_s_reached: float | None = None
    """The rate at which large pointwise kernels read and write memory (`pointwise_bytes_per_s`)."""

    @cached_property
    def peak(self) -> Accelerator | None:
        """The peaks of the trace's devices if all are of one model; else work cannot be assigned to one."""
        found = list(self.peaks.values())
        return found[0] if found and all(one == found[0] for one in found) else None

    @cached_property
    def family(self) -> NDArray[np.object_]:
        """Per event the family of its kernel, or an empty text."""
        return np.array([name or "" for name in self.classified.families], object)[self.classified.family_of]

    @cached_property
    def is_half(self) -> Mask:
        """Which events are of calls in 16 bits."""
        return self.dtype_of("bfloat16") | self.dtype_of("float16")

    @property
    def could_use_tensor_cores(self) -> Mask:
        """Which events are of kernels that could use tensor cores."""
        return self._tensor_cores[0]

    @property
    def uses_tensor_cores(self) -> Mask:
        """Which events are of kernels that use them."""
        return self._tensor_cores[1]

    @cached_property
    def _tensor_cores(self) -> tuple[Mask, Mask]:
        return tensor_core_use(self.classified)

    def dtype_of(self, dtype: str) -> Mask:
        """Which events belong to calls of a dtype."""
        owner = self.events.owner
        if dtype not in self.work.dtypes or not len(self.work.dtype_of):
            return np.zeros(len(owner), np.bool_)
        number = self.work.dtypes.index(dtype)
        chosen: Mask = (owner >= 0) & (self.work.dtype_of[np.maximum(owner, 0)] == number)
        return chosen

    def flops(self) -> NDArray[np.float64]:
        """Per event the FLOPs of its call, which stand at the call's main event; 0 where they are not known."""
        owner = self.events.owner
        if not len(self.work.causal):
            return np.zeros(len(owner))
        return np.where(self.events.main & (owner >= 0), self.work.causal[np.maximum(owner, 0)], 0).astype(np.float64)

    def moved(self) -> NDArray[np.float64]:
        """Per event the bytes of its call, which stand at the call's main event; 0 where they are not known."""
        return _moved(self.work, self.events)

    def transfer_ns(self) -> NDArray[np.float64]:
        """Per event the least time that moving its call's bytes takes; 0 where that is not known."""
        speed = self.bytes_per_s
        return self.moved() / speed * 1e9 if speed else np.zeros(len(self.events.owner))

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of the device's memory in this recording: the rated one, unless large kernels show a far lower one.

        Where no rate is known it is the one that those reach; ``None`` if there are none.
        """
        rated = self.peak.memory_bytes_per_s if self.peak is not None else None
        reached = self.bytes_per_s_reached
        if rated is None or (reached is not None and reached < FAR_BELOW * rated):
            return reached
        return rated


def workings_of(trace: Trace, classified: Classified, peaks: Mapping[int, Accelerator | None]) -> Workings:
    """The workings of a trace with classified events."""
    tree = operator_tree(trace)
    work = operator_work(trace, tree)
    events = event_work(trace, counted_operator_of(tree, work), work, classified)
    reached = pointwise_bytes_per_s(trace, classified, _moved(work, events))
    return Workings(classified, tree, work, events, peaks, reached)


def _moved(work: OperatorWork, events: EventWork) -> NDArray[np.float64]:
    if not len(work.moved):
        return np.zeros(len(events.owner))
    moved = work.moved[np.maximum(events.owner, 0)]
    return np.where(events.main & (events.owner >= 0), moved, 0).astype(np.float64)
